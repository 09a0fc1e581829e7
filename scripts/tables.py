"""How the scripts that generate tables of constants write them."""


def filled(entries):
    """Lines of at most 118 characters that hold the entries in their order."""
    lines, line = [], ""
    for entry in entries:
        if len(line) + len(entry) + 1 > 118:
            lines.append(line)
            line = ""
        line += (" " if line else "") + entry
    return lines + [line]
