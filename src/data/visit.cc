#include "data/visit.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/rng.h"
#include "data/prefetch.h"

namespace tdock::data {
namespace {

constexpr int64_t kVisitedAtOnce = 128;

// What the records that yield no sample lack.
absl::string_view LackedBy(Phase phase) {
  switch (phase) {
    case Phase::kSft:
      return "lack a prompt or a reply, or have no token that the loss counts (data.train_on)";
    case Phase::kReward:
      return "lack a prompt, a chosen or a rejected answer";
    case Phase::kPrompt:
      return "have no prompt";
    case Phase::kUnsupervised:
      return "have no text";
  }
  return "";
}

}  // namespace

absl::StatusOr<LoaderCounts> VisitSamples(
    const Source<EncodedSample>& source, int threads,
    const std::function<bool(const absl::StatusOr<OrSkip<EncodedSample>>&)>& visit) {
  using Piece = std::vector<absl::StatusOr<OrSkip<EncodedSample>>>;
  int64_t planned = 0;
  Prefetch<int64_t, Piece> pieces(
      threads,
      [&]() -> std::optional<int64_t> {
        if (planned >= source.size()) return std::nullopt;
        return std::exchange(planned, planned + kVisitedAtOnce);
      },
      [&](int64_t begin) {
        std::vector<int64_t> indexes(static_cast<size_t>(std::min(kVisitedAtOnce, source.size() - begin)));
        std::iota(indexes.begin(), indexes.end(), begin);
        return source.Load(indexes);
      });
  LoaderCounts counts;
  while (const std::optional<Piece> piece = pieces.Next()) {
    for (const auto& sample : *piece) {
      if (!sample.ok()) {
        const bool overlong = absl::IsOutOfRange(sample.status());
        if (!overlong && !absl::IsInvalidArgument(sample.status())) return sample.status();
        ++(overlong ? counts.overlong : counts.bad);
      } else if (const Skip* skip = std::get_if<Skip>(&*sample)) {
        ++(*skip == Skip::kOverlong ? counts.overlong : counts.incomplete);
      } else {
        ++counts.samples;
        if (std::get<EncodedSample>(*sample).truncated) ++counts.truncated;
      }
      if (!visit(sample)) return counts;
    }
  }
  return counts;
}

std::vector<int64_t> SpreadIndexes(int64_t size) {
  constexpr int64_t kBlock = 64;
  std::vector<int64_t> blocks(static_cast<size_t>((size + kBlock - 1) / kBlock));
  std::iota(blocks.begin(), blocks.end(), int64_t{0});
  Rng rng(1);
  rng.Shuffle(std::span(blocks));
  std::vector<int64_t> indexes;
  indexes.reserve(static_cast<size_t>(size));
  for (const int64_t block : blocks) {
    for (int64_t i = block * kBlock; i < std::min(size, (block + 1) * kBlock); ++i) indexes.push_back(i);
  }
  return indexes;
}

absl::Status NoSampleError(const EncodingRules& rules, Phase phase, const LoaderCounts& counts) {
  std::vector<std::string> why;
  if (counts.overlong > 0) {
    const bool prompts = phase == Phase::kPrompt;
    why.push_back(absl::StrCat(counts.overlong, counts.overlong == 1 ? " has a prompt" : " have prompts",
                               " too long for ", prompts ? "data.max_prompt_length" : "data.max_length", " (",
                               prompts ? rules.max_prompt_len : rules.max_seq_len, " tokens), which can be raised"));
  }
  if (counts.incomplete > 0) why.push_back(absl::StrCat(counts.incomplete, " ", LackedBy(phase)));
  if (counts.bad > 0) why.push_back(absl::StrCat(counts.bad, " cannot be read"));
  return absl::FailedPreconditionError(absl::StrCat("none of the ", counts.overlong + counts.incomplete + counts.bad,
                                                    " records can be used: ", absl::StrJoin(why, "; ")));
}

}  // namespace tdock::data
