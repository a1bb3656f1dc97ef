"""The parts of a lab note, a module each; every part yields blocks of Markdown for `reports.note` to put together."""
