#include "core/base/process_memory.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"

namespace tdock {
namespace {

// The first number of a text; nothing if it does not begin with one, as "max".
std::optional<int64_t> FirstNumber(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
  int64_t number = 0;
  if (words.empty() || !absl::SimpleAtoi(words[0], &number)) return std::nullopt;
  return number;
}

std::optional<int64_t> NumberIn(Env& env, const std::string& path) {
  const absl::StatusOr<std::string> text = env.ReadFile(path);
  return text.ok() ? FirstNumber(*text) : std::nullopt;
}

// The bytes behind a label, in a file that has them in KiB.
std::optional<int64_t> BytesBehind(Env& env, const std::string& path, const std::string& label) {
  const absl::StatusOr<std::string> text = env.ReadFile(path);
  if (!text.ok()) return std::nullopt;
  const size_t at = text->find(label);
  if (at == std::string::npos) return std::nullopt;
  const std::optional<int64_t> kib = FirstNumber(absl::string_view(*text).substr(at + label.size()));
  return kib ? std::optional(*kib * 1024) : std::nullopt;
}

// What the control group, of either version, leaves. Pages of files that it counts can be had back.
std::optional<int64_t> OfControlGroup(Env& env) {
  struct Version {
    const char *limit, *used, *statistics, *files;
  };
  constexpr Version kVersions[] = {
      {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", "\nfile "},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
       "/sys/fs/cgroup/memory/memory.stat", "\ntotal_cache "}};
  for (const Version& version : kVersions) {
    const std::optional<int64_t> limit = NumberIn(env, version.limit), used = NumberIn(env, version.used);
    if (!limit || !used) continue;
    int64_t files = 0;
    if (const absl::StatusOr<std::string> text = env.ReadFile(version.statistics); text.ok()) {
      const std::string lines = "\n" + *text;
      const size_t at = lines.find(version.files);
      if (at != std::string::npos) {
        files = FirstNumber(absl::string_view(lines).substr(at + std::string(version.files).size())).value_or(0);
      }
    }
    return std::max<int64_t>(*limit - *used + files, 0);
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<int64_t> ResidentMemory(Env& env) {
  TDOCK_ASSIGN_OR_RETURN(const std::string text, env.ReadFile("/proc/self/statm"));
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  int64_t pages = 0;
  if (words.size() < 2 || !absl::SimpleAtoi(words[1], &pages)) {
    return absl::InternalError("/proc/self/statm does not begin with two numbers of pages");
  }
  return pages * ::sysconf(_SC_PAGESIZE);
}

absl::StatusOr<int64_t> PeakResidentMemory(Env& env) {
  const std::optional<int64_t> peak = BytesBehind(env, "/proc/self/status", "VmHWM:");
  if (!peak.has_value()) return absl::InternalError("/proc/self/status has no number of KiB behind VmHWM");
  return *peak;
}

std::optional<int64_t> AvailableMemory(Env& env, int64_t resident) {
  std::optional<int64_t> least;
  for (const std::optional<int64_t>& left : {BytesBehind(env, "/proc/meminfo", "MemAvailable:"), OfControlGroup(env)}) {
    if (left) least = std::min(least.value_or(*left), *left);
  }
  return least ? std::optional(*least + resident) : std::nullopt;
}

}  // namespace tdock
