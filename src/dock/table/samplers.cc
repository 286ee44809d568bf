#include "dock/table/samplers.h"

#include <algorithm>
#include <exception>
#include <span>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/tensor/balance.h"

namespace tdock::dock {
namespace {

constexpr int64_t kBalancedSets = 8;

// `count` of the places below `size`, each with the same chance, in random order.
std::vector<int64_t> DrawPlaces(int64_t count, int64_t size, Rng& rng) {
  std::vector<int64_t> places;
  places.reserve(static_cast<size_t>(count));
  // Fisher-Yates over 0, 1, …, size − 1, of which only the swapped positions are stored.
  absl::flat_hash_map<int64_t, int64_t> swapped;
  swapped.reserve(static_cast<size_t>(count));
  const auto at = [&](int64_t place) {
    const auto it = swapped.find(place);
    return it == swapped.end() ? place : it->second;
  };
  for (int64_t i = 0; i < count; ++i) {
    const int64_t chosen = i + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(size - i)));
    places.push_back(at(chosen));
    swapped[chosen] = at(i);
  }
  return places;
}

// Among sets of equal size and nearly equal length, takes the one with the first candidate: so no row waits forever.
class BalancedSampler final : public CustomSampler {
 public:
  int64_t Window(int64_t max) const override {
    return max > INT64_MAX / kBalancedSets ? INT64_MAX : max * kBalancedSets;
  }

  std::vector<size_t> Choose(std::span<const Candidate> candidates, int64_t, int64_t max, uint64_t) override {
    const size_t count = std::min(static_cast<size_t>(max), candidates.size());
    const size_t sets = candidates.size() / count;
    std::vector<int64_t> lengths;
    for (const Candidate& candidate : candidates.first(sets * count)) lengths.push_back(candidate.length);
    for (std::vector<size_t>& set : BalanceEqualSizes(lengths, sets)) {
      std::sort(set.begin(), set.end());
      if (set.front() == 0) return std::move(set);
    }
    return {};
  }
};

absl::Status CheckChoice(const std::vector<size_t>& chosen, size_t candidates, int64_t min, int64_t max) {
  const int64_t count = static_cast<int64_t>(chosen.size());
  if (count < min || count > max) {
    return absl::InternalError(absl::StrCat("chose ", count, " candidates, not ", min, " to ", max));
  }
  std::vector<bool> seen(candidates);
  for (size_t position : chosen) {
    if (position >= candidates) {
      return absl::InternalError(absl::StrCat("chose candidate ", position, " of ", candidates));
    }
    if (seen[position]) return absl::InternalError(absl::StrCat("chose candidate ", position, " twice"));
    seen[position] = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RowId>> AskSampler(CustomSampler& sampler, const Offer& offer) {
  std::vector<Candidate> candidates;
  std::vector<size_t> chosen;
  try {
    std::vector<RowId> window;
    const int64_t wanted = std::max(sampler.Window(offer.max), offer.max);
    offer.takeable.First(std::min(wanted, offer.takeable.size()), window);
    for (RowId unit : window) candidates.push_back(offer.candidate(unit));
    chosen = sampler.Choose(candidates, offer.min, offer.max, offer.seed);
  } catch (const std::exception& error) {
    return absl::InternalError(EscapeUnprintable(error.what()));
  } catch (...) {
    return absl::InternalError("threw something other than a std::exception");
  }
  TDOCK_RETURN_IF_ERROR(CheckChoice(chosen, candidates.size(), offer.min, offer.max));
  std::vector<RowId> units;
  for (size_t position : chosen) units.push_back(candidates[position].row);
  return units;
}

}  // namespace

absl::StatusOr<std::vector<RowId>> ChooseUnits(const ConsumerOptions& options, const CustomSamplers& samplers,
                                               const Offer& offer) {
  const int64_t count = std::min(offer.max, offer.takeable.size());
  std::vector<RowId> units;
  switch (options.sampler) {
    case Sampler::kFirstCome:
      units.reserve(static_cast<size_t>(count));
      offer.takeable.First(count, units);
      return units;
    case Sampler::kUniform: {
      Rng rng(offer.seed);
      offer.takeable.Select(DrawPlaces(count, offer.takeable.size(), rng), units);
      return units;
    }
    case Sampler::kLengthBalanced: {
      BalancedSampler sampler;
      return AskSampler(sampler, offer);
    }
    case Sampler::kCustom:
      break;
  }
  absl::StatusOr<std::vector<RowId>> chosen = AskSampler(*samplers.at(options.custom_sampler), offer);
  if (chosen.ok()) return chosen;
  return Annotate(chosen.status(), absl::StrCat("sampler '", options.custom_sampler, "'"));
}

}  // namespace tdock::dock
