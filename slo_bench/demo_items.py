"""The questions of the demo's accuracy gate, in our own words, and what its simulated engine says to them."""

from __future__ import annotations

from gates.gsm8k import items_sha256
from slo_bench.accuracy.items import ItemSet, items_from
from slo_bench.simulate.answers import KnownAnswers

SOURCE = "the demo's own questions"

_ROWS: tuple[tuple[str, str], ...] = (
    ("A crate holds 18 jars and 7 jars are broken. How many jars are whole?", "18 - 7 = 11 jars.\n#### 11"),
    ("Four friends share 52 cherries evenly. How many does each get?", "52 / 4 = 13 cherries.\n#### 13"),
    ("A tram runs every 12 minutes. How many leave in 3 hours?", "3 hours are 180 minutes, 180 / 12 = 15.\n#### 15"),
    ("Rope costs 3 euros a metre. What do 2 pieces of 9 metres cost?", "2 * 9 = 18, 18 * 3 = 54 euros.\n#### 54"),
    ("Ada plants 6 rows of 11 bulbs and 9 do not grow. How many grow?", "6 * 11 = 66, 66 - 9 = 57.\n#### 57"),
    ("A pool of 900 litres loses a third. How many litres are left?", "900 / 3 = 300, 900 - 300 = 600.\n#### 600"),
    ("Nils reads 24 pages a day. On which day does he finish 192 pages?", "192 / 24 = 8, on day 8.\n#### 8"),
    ("A shop sells 35 lamps on Friday and twice that on Saturday. How many in all?", "35 + 70 = 105.\n#### 105"),
    ("Tickets are 14 euros, children pay half. What do 2 adults and 3 children pay?", "28 + 21 = 49 euros.\n#### 49"),
    ("A baker uses 250 grams a loaf. How many grams are in 16 loaves?", "250 * 16 = 4,000 grams.\n#### 4,000"),
    ("Of 80 letters a quarter is returned. How many arrive?", "80 / 4 = 20, 80 - 20 = 60.\n#### 60"),
    ("A hose fills 15 litres a minute. How many minutes does a barrel of 210 litres take?", "210 / 15 = 14.\n#### 14"),
    ("Jo saves 8 euros a week for 13 weeks and spends 40. How many euros are left?", "104 - 40 = 64.\n#### 64"),
    ("A bus has 47 seats, 19 are taken, and 12 people get in. How many seats are free?", "47 - 31 = 16.\n#### 16"),
    ("Three shelves hold 28 books each. 17 books are lent. How many stand there?", "84 - 17 = 67.\n#### 67"),
    ("A cyclist rides 22 kilometres an hour for 3 hours, then 9 more. How far?", "66 + 9 = 75 kilometres.\n#### 75"),
    ("A box of 60 tiles covers 5 square metres. How many tiles cover 8?", "60 / 5 = 12, 12 * 8 = 96.\n#### 96"),
    ("Mila is 9, her aunt is four times as old. How old is the aunt in 5 years?", "36 + 5 = 41.\n#### 41"),
    ("A farm has 31 goats and 14 sheep. How many legs are that?", "45 animals, 45 * 4 = 180 legs.\n#### 180"),
    ("A candle of 30 centimetres burns 4 an hour. How long is it after 6 hours?", "30 - 24 = 6.\n#### 6"),
    ("Half of 54 pupils walk and 11 cycle. How many come another way?", "27 + 11 = 38, 54 - 38 = 16.\n#### 16"),
    ("A printer makes 40 sheets a minute and stops 2 of 10 minutes. How many sheets?", "40 * 8 = 320.\n#### 320"),
    ("Tea costs 6 euros and a cup 9. What do 3 teas and 4 cups cost?", "18 + 36 = 54 euros.\n#### 54"),
    ("A parcel weighs 5 kilos, its box 2 of them. What do 7 contents weigh?", "5 - 2 = 3, 3 * 7 = 21 kilos.\n#### 21"),
)
"""Questions and worked solutions."""

_MISTAKES = {6: "192 / 24 = 7, on day 7.\n#### 7", 20: "27 + 11 = 38 pupils.\n#### 38"}
"""What the engine says instead of the solution, by the question's place: no model has all right."""


def demo_items() -> ItemSet:
    """The questions as the accuracy gate takes them."""
    items = items_from(({"question": question, "answer": solution} for question, solution in _ROWS), SOURCE)
    return ItemSet(items, SOURCE, items_sha256(items))


def demo_answers() -> KnownAnswers:
    """What the engine says."""
    return KnownAnswers({question: _MISTAKES.get(place, solution) for place, (question, solution) in enumerate(_ROWS)})
