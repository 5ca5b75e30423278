"""C++ names as people write them, for the usual shapes of Itanium mangling; what it cannot read stays as it is."""

from __future__ import annotations

from dataclasses import dataclass, field

BUILTIN = {
    "v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char", "h": "unsigned char", "s": "short",
    "t": "unsigned short", "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long", "x": "long long",
    "y": "unsigned long long", "n": "__int128", "o": "unsigned __int128", "f": "float", "d": "double",
    "e": "long double", "g": "__float128", "z": "...", "Dn": "decltype(nullptr)", "Di": "char32_t",
    "Ds": "char16_t", "Du": "char8_t", "Da": "auto",
}  # fmt: skip
STANDARD = {
    "St": "std", "Sa": "std::allocator", "Sb": "std::basic_string", "Ss": "std::string", "Si": "std::istream",
    "So": "std::ostream", "Sd": "std::iostream",
}  # fmt: skip
OPERATOR = {
    "nw": "new", "na": "new[]", "dl": "delete", "da": "delete[]", "ng": "-", "ad": "&", "de": "*", "co": "~",
    "pl": "+", "mi": "-", "ml": "*", "dv": "/", "rm": "%", "an": "&", "or": "|", "eo": "^", "aS": "=", "pL": "+=",
    "mI": "-=", "mL": "*=", "dV": "/=", "rM": "%=", "aN": "&=", "oR": "|=", "eO": "^=", "ls": "<<", "rs": ">>",
    "lS": "<<=", "rS": ">>=", "eq": "==", "ne": "!=", "lt": "<", "gt": ">", "le": "<=", "ge": ">=", "ss": "<=>",
    "nt": "!", "aa": "&&", "oo": "||", "pp": "++", "mm": "--", "cm": ",", "pm": "->*", "pt": "->", "cl": "()",
    "ix": "[]",
}  # fmt: skip
SPECIAL = {
    "TV": "vtable for ",
    "TT": "VTT for ",
    "TI": "typeinfo for ",
    "TS": "typeinfo name for ",
    "GV": "guard variable for ",
}
DEEPEST = 200


@dataclass
class _Reader:
    text: str
    at: int = 0
    seen: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    packs: frozenset[int] = frozenset()
    old_string: bool = False
    depth: int = 0

    def next(self, word: str) -> bool:
        if self.text.startswith(word, self.at):
            self.at += len(word)
            return True
        return False

    def peek(self, count: int = 1) -> str:
        return self.text[self.at : self.at + count]


def demangle(symbol: str) -> str:
    """The name in C++, or the symbol itself where its shape is not one of the usual."""
    reader = _Reader(symbol)
    return _whole(reader) or symbol


def short(symbol: str, width: int = 160) -> str:
    """demangle(), with a name too long for a line cut in its middle."""
    name = demangle(symbol)
    return name if len(name) <= width else f"{name[: width - 30]}…{name[-25:]}"


def old_strings(symbol: str) -> bool:
    """Whether the name holds the string type from before C++11 (_GLIBCXX_USE_CXX11_ABI=0)."""
    reader = _Reader(symbol)
    return _whole(reader) is not None and reader.old_string


def _whole(reader: _Reader) -> str | None:
    if not reader.next("_Z"):
        return None
    try:
        name = _encoding(reader)
    except (IndexError, ValueError, RecursionError):
        return None
    return name if reader.at == len(reader.text) or reader.peek() == "@" or reader.peek() == "." else None


def _encoding(r: _Reader) -> str:
    for word, said in SPECIAL.items():
        if r.next(word):
            return said + (_name(r)[0] if word == "GV" else _type(r))
    name, tail, plain = _name(r)
    if r.at >= len(r.text) or r.peek() in "E@.":
        return name + tail
    result = ""
    if name.endswith(">") and not plain and not name.endswith(("operator>", "operator->", "operator>>")):
        result = _type(r) + " "
    parameters = []
    while r.at < len(r.text) and r.peek() not in "E@.":
        parameters.append(_type(r))
    return f"{result}{name}({_list(parameters)}){tail}"


def _name(r: _Reader) -> tuple[str, str, bool]:
    """(name, what follows its parameters, whether it is a constructor, destructor or conversion)."""
    if r.next("N"):
        return _nested(r)
    if r.next("Z"):
        outer = _encoding(r)
        r.at += 1  # E
        if r.next("s"):
            return f"{outer}::string literal", "", True
        inner, tail, plain = _name(r)
        if r.next("_"):
            while r.peek().isdigit():
                r.at += 1
        return f"{outer}::{inner}", tail, plain
    if r.peek() == "S" and r.peek(2) != "St":
        name = _substitution(r)
    else:
        standard = r.next("St")
        part, plain = _unqualified(r, "")
        name = ("std::" if standard else "") + part
        if r.peek() != "I":
            return name, "", plain
        r.seen.append(name)
    if r.peek() == "I":
        return name + _templates(r, True), "", False
    return name, "", False


def _nested(r: _Reader) -> tuple[str, str, bool]:
    tail, name, plain, last = "", "", False, ""
    for letter, word in (("r", " restrict"), ("V", " volatile"), ("K", " const")):
        if r.next(letter):
            tail = word + tail
    for letter, word in (("R", " &"), ("O", " &&")):
        if r.next(letter):
            tail += word
    while not r.next("E"):
        head = r.peek()
        if head == "I":
            name += _templates(r, True)
            if r.peek() != "E":
                r.seen.append(name)
            continue
        if head == "S":
            name = _substitution(r)
            last = name.rpartition("::")[2].partition("<")[0]
            continue
        if head == "T":
            name = last = _parameter(r)
        elif r.next("M"):
            continue
        else:
            part, plain = _unqualified(r, last)
            name, last = (f"{name}::{part}" if name else part), part
        if r.peek() != "E":
            r.seen.append(name)
    return name, tail, plain


def _unqualified(r: _Reader, last: str) -> tuple[str, bool]:
    r.next("L")  # internal linkage
    if r.peek().isdigit():
        word = _word(r)
        name, plain = ("(anonymous namespace)" if word.startswith("_GLOBAL__N") else word), False
    elif r.peek() in ("C", "D") and r.peek(2)[1:].isdigit():
        destroys = r.peek() == "D"
        r.at += 2
        base = "basic_string" if last == "string" else last
        name, plain = ("~" if destroys else "") + base, True
    elif r.next("cv"):
        name, plain = "operator " + _type(r), True
    elif r.next("li"):
        name, plain = 'operator"" ' + _word(r), False
    elif r.next("Ul"):
        inside = []
        while not r.next("E"):
            inside.append(_type(r))
        name, plain = f"{{lambda({_list(inside)})#{_count(r) + 1}}}", False
    elif r.next("Ut"):
        name, plain = f"{{unnamed type#{_count(r) + 1}}}", False
    else:
        word = OPERATOR.get(r.peek(2), "")
        if not word:
            raise ValueError(r.peek(2))
        r.at += 2
        name, plain = "operator" + (" " if word[0].isalpha() else "") + word, False
    while r.next("B"):
        name += f"[abi:{_word(r)}]"
    return name, plain


def _count(r: _Reader) -> int:
    """`_` is the first, `0_` the second: the number in the file, plus one."""
    digits = ""
    while r.peek().isdigit():
        digits += r.peek()
        r.at += 1
    r.at += 1  # _
    return int(digits) + 1 if digits else 0


def _word(r: _Reader) -> str:
    digits = ""
    while r.peek().isdigit():
        digits += r.peek()
        r.at += 1
    length = int(digits)
    word = r.text[r.at : r.at + length]
    if len(word) != length:
        raise ValueError("cut off")
    r.at += length
    return word


def _substitution(r: _Reader) -> str:
    pair = r.peek(2)
    if pair in STANDARD:
        r.at += 2
        if pair in ("Ss", "Sb"):
            r.old_string = True
        if pair == "St":
            part, _ = _unqualified(r, "")
            name = "std::" + part
            r.seen.append(name)
            return name
        return STANDARD[pair]
    r.at += 1
    return r.seen[_seq(r)]


def _seq(r: _Reader) -> int:
    digits = ""
    while r.peek() != "_":
        digits += r.peek()
        r.at += 1
        if len(digits) > 6 or r.at >= len(r.text):
            raise ValueError("cut off")
    r.at += 1
    return int(digits, 36) + 1 if digits else 0


def _parameter(r: _Reader, expanded: bool = False) -> str:
    r.at += 1
    index = _count(r)
    if index >= len(r.arguments) or (index in r.packs) != expanded:
        raise ValueError("a pack inside another type")
    return r.arguments[index]


def _pack(r: _Reader) -> str:
    """A whole pack in place; the pattern `T&&...` and the like is left alone."""
    if r.peek() != "T":
        raise ValueError("a pack inside another type")
    made = _parameter(r, expanded=True)
    r.seen += [made, made]
    return made


def _list(types: list[str]) -> str:
    return "" if types == ["void"] else ", ".join(one for one in types if one)


def _templates(r: _Reader, outermost: bool) -> str:
    r.at += 1
    found: list[str] = []
    packs = set()
    while not r.next("E"):
        if r.next("J"):
            inner = []
            while not r.next("E"):
                inner.append(_argument(r))
            packs.add(len(found))
            found.append(", ".join(inner))
        else:
            found.append(_argument(r))
    if outermost:
        r.arguments, r.packs = list(found), frozenset(packs)
    inside = ", ".join(one for one in found if one)
    return f"<{inside} >" if inside.endswith(">") else f"<{inside}>"


def _argument(r: _Reader) -> str:
    if r.next("L"):
        if r.next("_Z"):
            name = _encoding(r)
            r.at += 1
            return f"&{name}" if "(" in name else name
        kind = _type(r)
        value = ""
        while not r.next("E"):
            value += r.peek()
            r.at += 1
            if r.at >= len(r.text):
                raise ValueError("cut off")
        value = value.replace("n", "-", 1)
        if kind == "bool":
            return {"0": "false", "1": "true"}.get(value, value)
        suffix = {"int": "", "unsigned int": "u", "long": "l", "unsigned long": "ul", "long long": "ll"}
        return value + suffix[kind] if kind in suffix else f"({kind}){value}"
    if r.peek() == "X":
        raise ValueError("an expression")
    return _type(r)


def _type(r: _Reader) -> str:
    r.depth += 1
    if r.depth > DEEPEST:
        raise ValueError("too deep")
    try:
        return _one_type(r)
    finally:
        r.depth -= 1


def _one_type(r: _Reader) -> str:
    head = r.peek()
    if head == "D" and r.peek(2) in BUILTIN:
        r.at += 2
        return BUILTIN[r.text[r.at - 2 : r.at]]
    if head in BUILTIN:
        r.at += 1
        return BUILTIN[head]
    if head == "S" and r.peek(2) != "St":
        name = _substitution(r)
        if r.peek() == "I":
            name += _templates(r, False)
            r.seen.append(name)
        return name
    if r.next("Dp"):
        return _pack(r)
    made = _compound(r, head)
    if made is None:
        if head == "T":
            made = _parameter(r)
            if r.peek() == "I":
                r.seen.append(made)
                made += _templates(r, False)
        elif head == "N" or head == "Z" or head.isdigit() or head == "S":
            kept = r.arguments, r.packs
            made = _name(r)[0]
            r.arguments, r.packs = kept
        else:
            raise ValueError(head)
    r.seen.append(made)
    return made


def _compound(r: _Reader, head: str) -> str | None:
    """Pointers, references, qualifiers, arrays and functions; None for anything else."""
    if r.next("P"):
        return _around(_type(r), "*")
    if r.next("R"):
        inner = _type(r)
        return (
            inner
            if inner.endswith("&") and not inner.endswith("&&")
            else _around(inner.removesuffix("&&"), "&")
        )
    if r.next("O"):
        inner = _type(r)
        return inner if inner.endswith("&") else _around(inner, "&&")
    if r.next("K"):
        return _around(_type(r), " const")
    if r.next("V"):
        return _around(_type(r), " volatile")
    if r.next("A"):
        length = ""
        while r.peek().isdigit():
            length += r.peek()
            r.at += 1
        r.at += 1
        return f"{_type(r)} [{length}]"
    if r.next("M"):
        owner, member = _type(r), _type(r)
        return _around(member, f"{owner}::*") if " (" in member else f"{member} {owner}::*"
    if head == "F" or r.peek(3) == "DoF":
        r.at += 3 if head == "D" else 1
        r.next("Y")
        result, inside = _type(r), []
        while not r.next("E"):
            inside.append(_type(r))
        return f"{result} ({_list(inside)})"
    return None


def _around(inner: str, mark: str) -> str:
    """A mark on a function or array type goes inside: `void (*)(int)`."""
    at = inner.find(" (") if inner.endswith(")") else -1
    if at >= 0 and mark != " const":
        if inner.startswith("(", at + 1) and inner[at + 2 : at + 3] in ("*", "&"):
            end = inner.index(")", at)
            return inner[:end] + mark + inner[end:]
        return f"{inner[:at]} ({mark}){inner[at + 1 :]}"
    if inner.endswith("]") and " [" in inner:
        at = inner.rindex(" [")
        if mark == " const":
            return f"{inner[:at]} const{inner[at:]}"
        return f"{inner[:at]} ({mark}){inner[at:]}"
    return inner + mark
