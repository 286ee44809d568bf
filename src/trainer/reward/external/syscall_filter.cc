#include "trainer/reward/external/syscall_filter.h"

#include <sched.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock::reward {
namespace {

constexpr const char* kRefused[] = {
    "fork",
    "vfork",
    "socket",
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "pidfd_getfd",
    "pidfd_open",
    "kcmp",
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "unshare",
    "setns",
    "move_mount",
    "open_tree",
    "fsopen",
    "fsmount",
    "mount_setattr",
    "memfd_create",
    "memfd_secret",
    "shmget",
    "msgget",
    "semget",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "add_key",
    "keyctl",
    "request_key",
    "init_module",
    "finit_module",
    "delete_module",
    "kexec_load",
    "kexec_file_load",
    "reboot",
    "swapon",
    "swapoff",
    "settimeofday",
    "clock_settime",
    "adjtimex",
    "clock_adjtime",
    "syslog",
    "acct",
    "quotactl",
    "name_to_handle_at",
    "open_by_handle_at",
    "personality",
    "fanotify_init",
    "mknod",
    "mknodat",
    "iopl",
    "ioperm",
    "prlimit64",
};

absl::Status Failed(const char* what, int code) {
  return absl::InternalError(
      absl::StrCat("cannot make the filter of system calls (", what, "): ", std::strerror(-code)));
}

}  // namespace

absl::StatusOr<std::string> MakeSyscallFilter() {
  const std::unique_ptr<void, void (*)(scmp_filter_ctx)> filter(seccomp_init(SCMP_ACT_ALLOW), seccomp_release);
  if (filter == nullptr) return absl::InternalError("cannot make the filter of system calls");
  for (const char* name : kRefused) {
    const int number = seccomp_syscall_resolve_name(name);
    if (number == __NR_SCMP_ERROR) continue;  // not of this version of libseccomp
    // Reading limits is harmless; only changing those of others is not.
    constexpr scmp_arg_cmp kSets = {.arg = 2, .op = SCMP_CMP_NE, .datum_a = 0, .datum_b = 0};
    const bool limits = std::strcmp(name, "prlimit64") == 0;
    const int added =
        seccomp_rule_add_array(filter.get(), SCMP_ACT_ERRNO(EPERM), number, limits ? 1 : 0, limits ? &kSets : nullptr);
    if (added < 0 && added != -EDOM) return Failed(name, added);
  }
  // Threads are clones, too. clone3 hides its flags in memory; without it, the C library uses clone.
  constexpr scmp_arg_cmp kNoThread = {.arg = 0, .op = SCMP_CMP_MASKED_EQ, .datum_a = CLONE_THREAD, .datum_b = 0};
  int code = seccomp_rule_add_array(filter.get(), SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1, &kNoThread);
  if (code < 0) return Failed("clone", code);
  code = seccomp_rule_add(filter.get(), SCMP_ACT_ERRNO(ENOSYS), seccomp_syscall_resolve_name("clone3"), 0);
  if (code < 0) return Failed("clone3", code);
  const int file = memfd_create("filter", MFD_CLOEXEC);
  if (file < 0) return absl::ErrnoToStatus(errno, "cannot make a file in memory");
  code = seccomp_export_bpf(filter.get(), file);
  std::string compiled;
  std::array<char, 4096> bytes;
  lseek(file, 0, SEEK_SET);
  for (ssize_t got; (got = read(file, bytes.data(), bytes.size())) > 0;)
    compiled.append(bytes.data(), static_cast<size_t>(got));
  close(file);
  if (code < 0 || compiled.empty()) return Failed("export", code);
  return compiled;
}

}  // namespace tdock::reward
