#include "runtime/launch/verdict.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace tdock::runtime {
namespace {

using How = ProcessEnd::How;

bool EndedBy(const ProcessEnd& end, int signal) {
  return (end.how == How::kSignaled && end.code == signal) || (end.how == How::kExited && end.code == 128 + signal);
}

bool EndedAsTold(const RankEnd& end) {
  return std::any_of(end.told.begin(), end.told.end(), [&](int signal) { return EndedBy(end.end, signal); });
}

bool WasKilledOrCrashed(const ProcessEnd& end) {
  if (end.how != How::kSignaled) return end.how != How::kExited;
  constexpr int kOwnDecision[] = {SIGABRT, SIGTERM, SIGINT, SIGHUP, SIGPIPE};
  return std::find(std::begin(kOwnDecision), std::end(kOwnDecision), end.code) == std::end(kOwnDecision);
}

// What became of a rank that is not the cause.
std::string Fate(const RankEnd& end) {
  if (!EndedAsTold(end)) return end.end.ToString();
  return EndedBy(end.end, SIGKILL) ? "killed, because it did not end in time" : "ended by the launcher";
}

}  // namespace

bool HasFailed(const RankEnd& end) {
  const bool is_well = end.end.how == How::kExited && end.end.code == 0;
  return !is_well && !EndedAsTold(end);
}

const RankEnd* CauseOf(std::span<const RankEnd> ends) {
  const auto first = std::find_if(ends.begin(), ends.end(), HasFailed);
  if (first == ends.end()) return nullptr;
  const auto killed =
      std::find_if(first, ends.end(), [](const RankEnd& end) { return HasFailed(end) && WasKilledOrCrashed(end.end); });
  return first->end.how == How::kExited && killed != ends.end() ? &*killed : &*first;
}

int ExitCodeOf(const ProcessEnd& end) {
  switch (end.how) {
    case How::kExited:
      return end.code;
    case How::kSignaled:
      return 128 + end.code;
    case How::kTooMuchMemory:
      return 128 + SIGKILL;
    case How::kNotRun:
      return end.code == ENOENT ? 127 : 126;
  }
  return 1;
}

std::string FailureText(std::span<const RankEnd> ends, const RankEnd& cause) {
  std::string text = absl::StrCat("rank ", cause.rank, " ", cause.end.ToString(), ", ",
                                  absl::StrFormat("%.1f s", absl::ToDoubleSeconds(cause.after)), " after its start; ");
  if (cause.last_lines.empty()) {
    absl::StrAppend(&text, "it has written nothing");
  } else {
    absl::StrAppend(&text, "the last of its output:\n    ", absl::StrJoin(cause.last_lines, "\n    "));
  }
  std::vector<std::pair<std::string, std::vector<int>>> fates;  // of which ranks
  for (const RankEnd& end : ends) {
    if (end.rank == cause.rank || (end.end.how == How::kExited && end.end.code == 0)) continue;
    const std::string fate = Fate(end);
    auto at = std::find_if(fates.begin(), fates.end(), [&](const auto& known) { return known.first == fate; });
    if (at == fates.end()) at = fates.insert(fates.end(), {fate, {}});
    at->second.push_back(end.rank);
  }
  std::string separator = "\nand then ";
  for (auto& [fate, ranks] : fates) {
    std::sort(ranks.begin(), ranks.end());
    absl::StrAppend(&text, separator, ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "), ": ", fate);
    separator = "; ";
  }
  return text;
}

}  // namespace tdock::runtime
