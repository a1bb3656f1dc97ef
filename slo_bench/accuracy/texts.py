"""The fixed texts of the text gate, in our own words: prose, numbers, a list, code, a letter, a dialogue."""

from __future__ import annotations

TEXTS = (
    (
        "The ferry left the harbour a little after six, when the fog had thinned enough to show the second buoy. "
        "On deck stood a handful of people with their collars up, two of them with bicycles, one with a crate of "
        "tomatoes that he would not put down. Nobody spoke. The captain, who had made the crossing some nine "
        "thousand times, counted the gulls on the mole as he always did, and found one more than yesterday."
    ),
    (
        "To repair a slow puncture, take the wheel out and press the tyre's edge into the middle of the rim, all "
        "the way round. Lift it over the side with two levers, pull out the tube and pump it up. Hold it close to "
        "your lips: the skin there feels the leak before the ear hears it. Mark the place, roughen it, spread the "
        "glue thinly and wait until it no longer shines. Only then press the patch on, from its middle to its "
        "edge."
    ),
    (
        "In the first quarter the workshop sold 412 chairs at 85 euros and 97 tables at 240 euros. Wood cost "
        "9,310 euros, wages came to 21,600 euros and the rent was 2,850 euros for three months. So revenue was "
        "35,020 + 23,280 = 58,300 euros, and after these costs 24,540 euros were left. In the second quarter "
        "chairs fell by a tenth while tables rose by a third, which nobody had planned for."
    ),
    (
        "def moving_average(values, width):\n"
        '    """The mean of each run of `width` neighbours."""\n'
        "    total = sum(values[:width])\n"
        "    averages = [total / width]\n"
        "    for leaving, entering in zip(values, values[width:]):\n"
        "        total += entering - leaving\n"
        "        averages.append(total / width)\n"
        "    return averages\n"
        "\n"
        "\n"
        "assert moving_average([1, 2, 3, 4], 2) == [1.5, 2.5, 3.5]\n"
    ),
    (
        "Dear Mrs Okafor, thank you for your letter of the third of May. We are sorry that the parcel reached you "
        "with a broken lid and without the second jar. A replacement left our store this morning; it should be "
        "with you by Thursday. You need not send anything back. If the seal of the first jar is damaged too, "
        "please do not use it, and tell us, so that we can look into the whole batch. With kind regards, Ilse "
        "Brandt, customer service."
    ),
    (
        "A glacier does not melt like an ice cube on a plate. Most of the water is made at its surface, where the "
        "sun warms the dark dust that the wind has left. The water runs in blue channels until it finds a crack, "
        "falls through it, and flows on below, between ice and rock. There it works like oil: the whole body of "
        "ice slides faster on warm afternoons than at night, and the instruments on its back can tell the hour by "
        "its pace."
    ),
    (
        '"You said the bridge was closed," she said. "It was closed on Monday." "Today is Monday." He looked at '
        'the calendar behind the counter, then at his watch, then at her. "So it is," he said, and put the kettle '
        'on again. "Then we have time for another cup, and you can tell me what you wanted in town in the first '
        'place." She thought about it for a while. It had seemed very clear in the morning.'
    ),
    (
        "Three things decide whether bread rises well: the flour, the warmth and the time. Strong flour holds the "
        "gas that the yeast makes; weak flour lets it go. At 24 degrees a dough doubles in about two hours, at 18 "
        "degrees it takes four, and overnight in a cold room it gains a taste that no quick dough has. Salt slows "
        "everything down a little, sugar speeds it up at first. When in doubt, watch the dough and not the clock."
    ),
    (
        "Agenda for Tuesday. 1. Minutes of the last meeting. 2. The leaking roof over hall B: two offers, 14,200 "
        "and 17,900 euros, with a difference in the guarantee that must be explained. 3. Keys: who has them, who "
        "should, and why four are missing. 4. The summer party, which was rained off last year; a date in June or "
        "a tent. 5. Any other business. Please read the two offers before the meeting, not during it."
    ),
    (
        "The scheduler keeps two queues. Requests that wait for memory stand in the first one, in the order in "
        "which they came; requests that run stand in the second. At each step it first serves those that run, one "
        "token each, and spends what is left of its budget on the prompts of those that wait. If memory runs out, "
        "the request that came last gives up its place and starts again later. Nobody starves, since the order of "
        "the first queue never changes."
    ),
)
