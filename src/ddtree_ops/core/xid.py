"""What NVIDIA's Xid numbers mean for a deploy: a fault of the card and what ends it, a remark, or a program's fault.

The actions are those of NVIDIA's Xid catalogue (series 610, its "immediate action"), and those of the reports. The
agent carries this module: standard library only.
"""

from __future__ import annotations

RESET = "stop what uses it, nvidia-smi --gpu-reset -i {bus} on {host}"
AGAIN = RESET + "; if it comes again, replace it"
POWER = "power-cycle {host}; a restart loop cannot bring it back"
REPLACE = "leave that GPU out of CUDA_VISIBLE_DEVICES and have it replaced (RMA)"
LOOK = "nvidia-smi -q -i {bus}, on {host}"
#: Xid -> (what it means, what helps, whether a later reset ends it).
HARDWARE: dict[int, tuple[str, str, bool]] = {
    46: ("the GPU stopped processing", RESET, True),
    48: ("an uncorrectable (double bit) memory error", AGAIN, True),
    61: ("the GPU's microcontroller stopped", RESET, True),
    62: ("the GPU's microcontroller halted", RESET, True),
    63: ("a memory row waits for its remap", AGAIN, True),
    64: ("a memory row could not be remapped", REPLACE, False),
    74: ("an NVLink error", RESET + "; nvidia-smi nvlink -e", True),
    79: ("the GPU fell off the bus", POWER, False),
    94: ("a contained memory error", AGAIN, True),
    95: ("an uncontained memory error", AGAIN, True),
    109: ("the GPU could not switch between programs", RESET, True),
    110: ("a security fault of the GPU", RESET, True),
    119: ("the GPU's system processor (GSP) gave no answer", RESET + ", or reboot {host}", True),
    120: ("the GPU's system processor (GSP) failed", RESET + ", or reboot {host}", True),
    136: ("an NVLink could not be trained", RESET, True),
    140: ("an unrecovered memory error", AGAIN, True),
    143: ("the GPU could not be initialised", RESET, True),
    **dict.fromkeys(range(144, 151), ("an NVLink error", RESET + "; nvidia-smi nvlink -e", True)),
    151: ("a fault of the key rotation", "reboot {host}", False),
    154: ("the driver asks for a recovery action", RESET, True),
    155: ("an NVLink went down", RESET, True),
    156: ("a part of the GPU is being retired", RESET, True),
    158: ("a fatal timeout of the GPU", AGAIN, True),
    167: ("a fatal PCIe timeout", RESET + ", or reboot {host}", True),
    169: ("the GPU's security processor halted", RESET, True),
    171: ("an uncorrectable memory (DRAM) error", AGAIN, True),
    172: ("an uncorrectable memory (SRAM) error", AGAIN, True),
}
#: Remarks: the GPU goes on, and a person should know.
REMARKS: dict[int, tuple[str, str]] = {
    54: ("it runs at reduced clocks, a power connector is missing", "check the power cables of {host}"),
    92: ("many single-bit memory errors", LOOK),
    157: ("a part of the GPU could not be retired", LOOK),
    168: ("its memory is smaller than it was", LOOK),
}
#: Faults that a program makes; a restart is reasonable.
APPLICATION = frozenset(
    {
        8,
        11,
        13,
        25,
        31,
        32,
        *range(37, 42),
        43,
        44,
        45,
        60,
        *range(66, 73),
        75,
        76,
        77,
        80,
        *range(82, 87),
        88,
        89,
    }
    | {*range(96, 106), *range(126, 136), 139}
)
#: Faults that a program can bring about too: one during a start does not clear the release.
DOUBTFUL = frozenset({109})
#: Memory faults: pending rows and ECC counters tell whether a reset ended them, also where a driver tells no action.
MEMORY = {48, 63, 94, 95, 140, 171, 172}
#: On one GPU alone these do no harm.
LINKS = {74, 136, *range(144, 151), 155}


def clears_release(code: int) -> bool:
    """Whether an Xid that came while a release started says that the host broke, and not the release.

    One that no list knows does: the application's are listed well, new ones are mostly of new hardware.
    """
    return code not in APPLICATION and code not in DOUBTFUL and code not in REMARKS
