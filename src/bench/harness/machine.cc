#include "bench/harness/machine.h"

#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tdock::bench {
namespace {

// The value of the first line "key : value"; empty if there is none.
std::string Field(Env& env, const std::string& path, absl::string_view key) {
  const absl::StatusOr<std::string> text = env.ReadFile(path);
  if (!text.ok()) return "";
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    if (!absl::ConsumePrefix(&line, key)) continue;
    line = absl::StripLeadingAsciiWhitespace(line);
    if (absl::ConsumePrefix(&line, ":")) return std::string(absl::StripAsciiWhitespace(line));
  }
  return "";
}

// bench/peers has the same list.
std::vector<std::string> Instructions(Env& env) {
  static constexpr std::array kOfInterest = {"avx2",     "fma",         "f16c",        "avx_vnni",    "avx512f",
                                             "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile",
                                             "amx_bf16", "amx_int8",    "asimd",       "bf16",        "sve"};
  std::string flags = Field(env, "/proc/cpuinfo", "flags");
  if (flags.empty()) flags = Field(env, "/proc/cpuinfo", "Features");  // as Arm's are called
  const std::vector<std::string> has = absl::StrSplit(flags, ' ');
  std::vector<std::string> instructions;
  std::copy_if(kOfInterest.begin(), kOfInterest.end(), std::back_inserter(instructions),
               [&](const char* name) { return std::find(has.begin(), has.end(), name) != has.end(); });
  return instructions;
}

int64_t KilobytesField(Env& env, const std::string& path, absl::string_view key) {
  const std::string field = Field(env, path, key);
  int64_t kibibytes = 0;
  return absl::SimpleAtoi(absl::StripSuffix(field, " kB"), &kibibytes) ? kibibytes * 1024 : 0;
}

std::string Compiler() {
#ifdef __clang__
  return absl::StrCat("clang ", __clang_version__);
#else
  return absl::StrCat("g++ ", __VERSION__);
#endif
}

}  // namespace

Machine DescribeMachine(Env& env, Clock& clock) {
  Machine machine;
  machine.cpu = Field(env, "/proc/cpuinfo", "model name");
  machine.instructions = Instructions(env);
  machine.cores = static_cast<int>(std::thread::hardware_concurrency());
  machine.memory_bytes = KilobytesField(env, "/proc/meminfo", "MemTotal");
  if (utsname names = {}; ::uname(&names) == 0) {
    machine.kernel = absl::StrCat(names.sysname, " ", names.release);
    if (machine.cpu.empty()) machine.cpu = names.machine;
  }
  machine.compiler = Compiler();
  machine.build_type = TDOCK_BUILD_TYPE;
  if (::getloadavg(machine.load_average.data(), 3) != 3) machine.load_average = {};
  machine.time = absl::FormatTime(absl::RFC3339_sec, clock.Now(), absl::UTCTimeZone());
  return machine;
}

int64_t ResidentBytes(Env& env) { return KilobytesField(env, "/proc/self/status", "VmRSS"); }

}  // namespace tdock::bench
