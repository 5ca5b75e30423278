"""The text of a log line: without what surrounds it, cut to a width, secrets blanked.

Pure, standard library only: built verbatim into the host agent.
"""

import re
from typing import Optional, Pattern

#: What writes in front of a line: journal and syslog, docker and kubernetes, dmesg, torchrun, mpirun, vLLM,
#: Talos, glog.
_STAMP = re.compile(
    r"^(?:\w{3} +\d+ [\d:]{8}(?:\.\d+)? \S+ [^\s\[:]+(?:\[\d+\])?: "
    r"|\d{4}-\d\d-\d\dT[\d:.,]+[+-]\d\d:?\d\d [^\s:]+ [^\s\[:]+(?:\[\d+\])?: "
    r"|\d{4}-\d\d-\d\dT\S+ [^\s:]+ [^\s\[:]+\[\d+\]: |\[pod/[^\]\s]+\] "
    r"|[a-z0-9][a-z0-9-]*-[a-f0-9]{8,10}-[a-z0-9]{5} [a-z][\w-]* (?=\S)"
    r"|\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?(?: std(?:out|err) [FP])? (?=\s*\S)|\[?[\w.-]+\]? +\| "
    r"|\d\d/\d\d/(?:\d\d){1,2},? \d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?: \([^)]*\))? "
    r"|\[\d{4}-\d\d-\d\d,? [^\]]*\] \{[\w.]+:\d+\} "
    r"|(?:- )?[\w.]+ - (?:ERROR|WARNING|INFO|CRITICAL|DEBUG) - "
    r"|\| *(?:ERROR|WARNING|INFO|CRITICAL|DEBUG|SUCCESS) *\| [\w.:<>-]+ (?:\||-) ?|(?:ERROR|INFO|WARNING) - (?=\s*\S)"
    r"|\[ *\d+\.\d+\] |\[\w{3} \w{3} +\d+ [\d:]{8} \d{4}\] |\[[a-z]+\d+(?:\|\d+)?\]: ?"
    r"|\((?:\w[\w =.-]*\bpid=\d+[^)]*|raylet)\) ?"
    r"| *(?:Normal|Warning) +[A-Z]\w+ +(?:<\w+>|\d+\w+)(?: \([^)]*\))? +[\w-]+ +"
    r"|\[\d{4}-\d\d-\d\dT[\d:.]+Z?\] |\S+: kern: +\w+: \[[^\]]+\]: |\w{3} \w{3} +\d+ [\d:]{8} \d{4}\[\d+,\d+\]<\w+>: ?"
    r"|(?:ERROR|WARNING|INFO|CRITICAL|DEBUG) \d\d-\d\d [\d:.]+ \[?[\w./]+(?::\d+)?\] ?"
    r"|[EWIF]\d{4} [\d:.]+ +\d+ [\w./]+:\d+\] )"
)
_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufeff]"
)
_SECRET = re.compile(
    r"(?i)((?:api|admin|access|hf|auth)(?![-_]?pubkey)[-_]?\w*(?:key|token)['\"]?\s*[=:]\s*"
    r"|--\S*(?:key|token|passw(?:or)?d|secret)['\"]?[ =,]+"
    r"|bearer\s+|authorization['\"]?\s*[=:]\s*['\"]?\w+\s+|(?:password|passwd|secret)['\"]?\s*[=:]\s*"
    r"|[?&][\w-]*(?:token|key|secret|signature|sig)=|(?-i:\b[A-Z][A-Z0-9_]*_(?:TOKEN|KEY|SECRET))['\"]?\s*[=:]\s*)"
    r"('[^']*'|\"[^\"]*\"|[^\s,;)&]+)"
)
_TOKEN = re.compile(r"\b(?:hf_|sk-|gh[pousr]_|nvapi-|glpat-)[A-Za-z0-9_-]{16,}")
#: The password in an address: https://name:password@host.
_LOGIN = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")
#: Of a line longer than that (a prompt, a body, all arguments) the beginning tells what it is. Two hundred patterns
#: search each line, and some take the square of its length.
LONGEST = 4000
#: What the C library and the shell say in other languages, by what they say in English.
_LOCAL = {
    "No such file or directory": (
        "没有那个文件或目录|沒有此一檔案或目錄|Datei oder Verzeichnis nicht gefunden"
        "|Aucun fichier ou dossier de ce type"
        "|No existe el (?:fichero|archivo) o el directorio|そのようなファイルやディレクトリはありません"
        "|Нет такого файла или каталога|Arquivo ou diretório inexistente|File o directory non esistente"
        "|그런 파일이나 디렉터리가 없습니다"
    ),
    "Permission denied": (
        "权限不够|拒绝访问|拒絕不符權限的操作|Keine Berechtigung|Permission non accordée|Permiso denegado"
        "|許可がありません"
        "|Отказано в доступе|Permissão negada|Permesso negato|허가 거부"
    ),
    "No space left on device": (
        "设备上没有空间|Auf dem Gerät ist kein Speicherplatz mehr verfügbar|Aucun espace disponible sur le périphérique"
        "|No queda espacio en el dispositivo|デバイスに空き領域がありません|На устройстве не осталось свободного места"
    ),
    "Cannot allocate memory": (
        "无法分配内存|Nicht genügend Hauptspeicher verfügbar|Impossible d'allouer de la mémoire"
        "|No se pudo asignar memoria|メモリを確保できません|Не удалось выделить память"
    ),
    "Operation not permitted": (
        "不允许的操作|Die Operation ist nicht erlaubt|Opération non permise|Operación no permitida"
        "|許可されていない操作です|Операция не позволена"
    ),
    "Address already in use": (
        "地址已在使用|Die Adresse wird bereits verwendet|Adresse déjà utilisée|La dirección ya se está usando"
        "|アドレスは既に使用中です|Адрес уже используется"
    ),
    "Connection refused": (
        "拒绝连接|Verbindungsaufbau abgelehnt|Connexion refusée|Conexión rehusada|接続を拒否されました"
        "|В соединении отказано"
    ),
    "command not found": (
        "未找到命令|找不到命令|Befehl nicht gefunden|Kommando nicht gefunden|commande introuvable"
        "|orden no encontrada|コマンドが見つかりません|команда не найдена"
    ),
    "cannot open shared object file": (
        "Kann die Shared-Object-Datei nicht öffnen|无法打开共享对象文件|无法打开共享目标文件"
        "|no se puede abrir el fichero del objeto compartido|共有オブジェクトファイルを開けません"
        "|невозможно открыть разделяемый объектный файл"
    ),
    "Segmentation fault": (
        "段错误|段錯誤|Speicherzugriffsfehler|Erreur de segmentation|Violación de segmento"
        "|Ошибка сегментирования"
    ),
    "core dumped": "核心已转储|核心已轉儲|Speicherabzug geschrieben|コアダンプ",
    "Killed": "已杀死|已殺死|Getötet|Processus arrêté|強制終了|Убито",
}
_FOREIGN = re.compile("|".join(_LOCAL.values()))  # one test before the twelve
_LOCALS = [(re.compile(words), english) for english, words in _LOCAL.items()]
_WIDTH, _BEFORE = 400, 100
#: Punctuation of other scripts and of word processors, as a page that was copied from writes it.
_WIDE = re.compile(r"([：，；。])\s*")
_ASCII = {"：": ": ", "，": ", ", "；": "; ", "。": ". "}
_SINGLE = str.maketrans("（）“”‘’＝　\u00a0", "()\"\"''=  ")


def plain(line: str) -> str:
    """A log line without colours and control characters, its punctuation in ASCII."""
    text = _ANSI.sub("", line).rstrip()
    if not text.isascii():
        text = _WIDE.sub(lambda wide: _ASCII[wide[1]], text).translate(_SINGLE).rstrip()
    return text


def _unstamped(line: str) -> str:
    text = plain(line[:LONGEST])
    for _ in range(4):  # docker in front of torchrun in front of vLLM
        text, found = _STAMP.subn("", text, count=1)
        if not found:
            break
    return text


def bare(line: str) -> str:
    """What rules read: the beginning of the line, `plain`, without what a journal, a container or a launcher writes
    before it, the messages of the C library and the shell in English."""
    text = _unstamped(line)
    if not text.isascii() and _FOREIGN.search(text):
        for words, english in _LOCALS:
            text = words.sub(english, text)
    return text


def clean(line: str, at: Optional[Pattern[str]] = None) -> str:
    """The line as it stands, unstamped, cut to a width that a report can hold (about what matches `at`), secrets
    blanked."""
    text = _unstamped(line)
    text = _LOGIN.sub(r"\1***@", _TOKEN.sub("***", _SECRET.sub(r"\1***", text)))
    if len(text) <= _WIDTH:
        return text
    found = at.search(text) if at is not None else None
    if found is None or found.end() < _WIDTH:
        return text[: _WIDTH - 1] + "…"
    start = max(found.start() - _BEFORE, 0)
    cut = text[start : start + _WIDTH - 2]
    return ("…" if start else "") + cut + ("…" if start + len(cut) < len(text) else "")
