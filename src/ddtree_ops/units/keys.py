"""Which setting counts in which section: systemd ignores one that stands elsewhere.

Read off systemd 252's own parser table; NEWER names what later releases added, with the release.
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


UNIT = _names(
    """
    After AllowIsolate AssertACPower AssertArchitecture AssertCPUFeature AssertCPUPressure AssertCPUs
    AssertCapability AssertControlGroupController AssertCredential AssertDirectoryNotEmpty
    AssertEnvironment AssertFileIsExecutable AssertFileNotEmpty AssertFirstBoot AssertGroup AssertHost
    AssertIOPressure AssertKernelCommandLine AssertKernelVersion AssertMemory AssertMemoryPressure
    AssertNeedsUpdate AssertOSRelease AssertPathExists AssertPathExistsGlob AssertPathIsDirectory
    AssertPathIsEncrypted AssertPathIsMountPoint AssertPathIsReadWrite AssertPathIsSymbolicLink
    AssertSecurity AssertUser AssertVirtualization Before BindTo BindsTo CollectMode ConditionACPower
    ConditionArchitecture ConditionCPUFeature ConditionCPUPressure ConditionCPUs ConditionCapability
    ConditionControlGroupController ConditionCredential ConditionDirectoryNotEmpty ConditionEnvironment
    ConditionFileIsExecutable ConditionFileNotEmpty ConditionFirmware ConditionFirstBoot ConditionGroup
    ConditionHost ConditionIOPressure ConditionKernelCommandLine ConditionKernelVersion ConditionMemory
    ConditionMemoryPressure ConditionNeedsUpdate ConditionOSRelease ConditionPathExists
    ConditionPathExistsGlob ConditionPathIsDirectory ConditionPathIsEncrypted ConditionPathIsMountPoint
    ConditionPathIsReadWrite ConditionPathIsSymbolicLink ConditionSecurity ConditionUser
    ConditionVirtualization Conflicts DefaultDependencies Description Documentation FailureAction
    FailureActionExitStatus IgnoreOnIsolate IgnoreOnSnapshot JobRunningTimeoutSec JobTimeoutAction
    JobTimeoutRebootArgument JobTimeoutSec JoinsNamespaceOf OnFailure OnFailureIsolate OnFailureJobMode
    OnSuccess OnSuccessJobMode PartOf PropagateReloadFrom PropagateReloadTo PropagatesReloadTo
    PropagatesStopTo RebootArgument RefuseManualStart RefuseManualStop ReloadPropagatedFrom Requires
    RequiresMountsFor RequiresOverridable Requisite RequisiteOverridable SourcePath StartLimitAction
    StartLimitBurst StartLimitInterval StartLimitIntervalSec StopPropagatedFrom StopWhenUnneeded
    SuccessAction SuccessActionExitStatus Upholds Wants
    """
)
SERVICE = _names(
    """
    AllowedCPUs AllowedMemoryNodes AmbientCapabilities AppArmorProfile BPFProgram BindPaths
    BindReadOnlyPaths BlockIOAccounting BlockIODeviceWeight BlockIOReadBandwidth BlockIOWeight
    BlockIOWriteBandwidth BusName BusPolicy CPUAccounting CPUAffinity CPUQuota CPUQuotaPeriodSec
    CPUSchedulingPolicy CPUSchedulingPriority CPUSchedulingResetOnFork CPUShares CPUWeight
    CacheDirectory CacheDirectoryMode Capabilities CapabilityBoundingSet ConfigurationDirectory
    ConfigurationDirectoryMode CoredumpFilter DefaultMemoryLow DefaultMemoryMin Delegate DeviceAllow
    DevicePolicy DisableControllers DynamicUser Environment EnvironmentFile ExecCondition ExecPaths
    ExecReload ExecSearchPath ExecStart ExecStartPost ExecStartPre ExecStop ExecStopPost ExitType
    ExtensionDirectories ExtensionImages FailureAction FileDescriptorStoreMax FinalKillSignal Group
    GuessMainPID IOAccounting IODeviceLatencyTargetSec IODeviceWeight IOReadBandwidthMax IOReadIOPSMax
    IOSchedulingClass IOSchedulingPriority IOWeight IOWriteBandwidthMax IOWriteIOPSMax IPAccounting
    IPAddressAllow IPAddressDeny IPCNamespacePath IPEgressFilterPath IPIngressFilterPath IgnoreSIGPIPE
    InaccessibleDirectories InaccessiblePaths KeyringMode KillMode KillSignal LimitAS LimitCORE LimitCPU
    LimitDATA LimitFSIZE LimitLOCKS LimitMEMLOCK LimitMSGQUEUE LimitNICE LimitNOFILE LimitNPROC LimitRSS
    LimitRTPRIO LimitRTTIME LimitSIGPENDING LimitSTACK LoadCredential LoadCredentialEncrypted
    LockPersonality LogExtraFields LogLevelMax LogNamespace LogRateLimitBurst LogRateLimitIntervalSec
    LogsDirectory LogsDirectoryMode ManagedOOMMemoryPressure ManagedOOMMemoryPressureLimit
    ManagedOOMPreference ManagedOOMSwap MemoryAccounting MemoryDenyWriteExecute MemoryHigh MemoryLimit
    MemoryLow MemoryMax MemoryMin MemorySwapMax MountAPIVFS MountFlags MountImages NUMAMask NUMAPolicy
    NetClass NetworkNamespacePath Nice NoExecPaths NoNewPrivileges NonBlocking NotifyAccess OOMPolicy
    OOMScoreAdjust PAMName PIDFile PassEnvironment PermissionsStartOnly Personality PrivateDevices
    PrivateIPC PrivateMounts PrivateNetwork PrivateTmp PrivateUsers ProcSubset ProtectClock
    ProtectControlGroups ProtectHome ProtectHostname ProtectKernelLogs ProtectKernelModules
    ProtectKernelTunables ProtectProc ProtectSystem ReadOnlyDirectories ReadOnlyPaths
    ReadWriteDirectories ReadWritePaths RebootArgument RemainAfterExit RemoveIPC Restart
    RestartForceExitStatus RestartKillSignal RestartPreventExitStatus RestartSec RestrictAddressFamilies
    RestrictFileSystems RestrictNamespaces RestrictNetworkInterfaces RestrictRealtime RestrictSUIDSGID
    RootDirectory RootDirectoryStartOnly RootHash RootHashSignature RootImage RootImageOptions
    RootVerity RuntimeDirectory RuntimeDirectoryMode RuntimeDirectoryPreserve RuntimeMaxSec
    RuntimeRandomizedExtraSec SELinuxContext SecureBits SendSIGHUP SendSIGKILL SetCredential
    SetCredentialEncrypted Slice SmackProcessLabel SocketBindAllow SocketBindDeny Sockets StandardError
    StandardInput StandardInputData StandardInputText StandardOutput StartLimitAction StartLimitBurst
    StartLimitInterval StartupAllowedCPUs StartupAllowedMemoryNodes StartupBlockIOWeight
    StartupCPUShares StartupCPUWeight StartupIOWeight StateDirectory StateDirectoryMode
    SuccessExitStatus SupplementaryGroups SysVStartPriority SyslogFacility SyslogIdentifier SyslogLevel
    SyslogLevelPrefix SystemCallArchitectures SystemCallErrorNumber SystemCallFilter SystemCallLog
    TTYColumns TTYPath TTYReset TTYRows TTYVHangup TTYVTDisallocate TasksAccounting TasksMax
    TemporaryFileSystem TimeoutAbortSec TimeoutCleanSec TimeoutSec TimeoutStartFailureMode
    TimeoutStartSec TimeoutStopFailureMode TimeoutStopSec TimerSlackNSec Type UMask
    USBFunctionDescriptors USBFunctionStrings UnsetEnvironment User UtmpIdentifier UtmpMode WatchdogSec
    WatchdogSignal WorkingDirectory
    """
)
INSTALL = _names(
    """
    Alias Also DefaultInstance RequiredBy WantedBy
    """
)
SECTIONS = {"Unit": UNIT, "Service": SERVICE, "Install": INSTALL}
NEWER = {
    "OpenFile": 253, "ReloadSignal": 253, "MemoryZSwapMax": 253, "RootEphemeral": 254, "RestartMode": 254,
    "RestartSteps": 254, "RestartMaxDelaySec": 254, "MemoryKSM": 254, "ImportCredential": 254,
    "DelegateSubgroup": 254, "FileDescriptorStorePreserve": 254, "MemoryPressureWatch": 254,
    "MemoryPressureThresholdSec": 254, "StartupMemoryMax": 254, "StartupMemoryHigh": 254,
    "StartupMemoryLow": 254, "LogFilterPatterns": 253, "SetLoginEnvironment": 255, "CoredumpReceive": 255,
    "SurviveFinalKillSignal": 255, "NFTSet": 255, "MemoryZSwapWriteback": 256, "PrivatePIDs": 257,
}  # fmt: skip

# Assignments add up (an empty one clears, but for dependencies); of all others the last counts.
DEPENDENCIES = _names(
    """
    After Before Wants Requires Requisite BindsTo PartOf Upholds Conflicts OnFailure OnSuccess
    PropagatesReloadTo ReloadPropagatedFrom PropagatesStopTo StopPropagatedFrom JoinsNamespaceOf
    RequiresMountsFor WantedBy RequiredBy Alias Also
    """
)
LISTS = DEPENDENCIES | _names(
    """
    ExecCondition ExecStartPre ExecStart ExecStartPost ExecReload ExecStop ExecStopPost Environment
    EnvironmentFile PassEnvironment UnsetEnvironment ReadWritePaths ReadOnlyPaths InaccessiblePaths ExecPaths
    NoExecPaths BindPaths BindReadOnlyPaths SupplementaryGroups RuntimeDirectory StateDirectory CacheDirectory
    LogsDirectory ConfigurationDirectory DeviceAllow LoadCredential LoadCredentialEncrypted SetCredential
    SetCredentialEncrypted SystemCallFilter RestrictAddressFamilies AmbientCapabilities CapabilityBoundingSet
    IPAddressAllow IPAddressDeny TemporaryFileSystem SuccessExitStatus RestartPreventExitStatus
    RestartForceExitStatus LogExtraFields Documentation ImportCredential Sockets SystemCallArchitectures
    """
)


def is_list(key: str) -> bool:
    """Return whether assignments of `key` add up."""
    return key in LISTS or key.startswith(("Condition", "Assert"))


def verdict(section: str, key: str, version: int) -> str | None:
    """Return why systemd `version` ignores `key` in `section`, or None where it counts."""
    if key.startswith("X-"):
        return f"{key}= is a private key that systemd ignores"
    if key in SECTIONS[section] or (section == "Service" and NEWER.get(key, 10**6) <= version):
        return None
    right = [name for name, keys in SECTIONS.items() if key in keys]
    if right:
        return f"{key}= stands in [{section}], where systemd ignores it: it belongs in [{right[0]}]"
    if key in NEWER:
        return f"{key}= needs systemd {NEWER[key]}, this one ({version}) ignores it"
    return f"{key}= is no setting of [{section}]: systemd ignores it"
