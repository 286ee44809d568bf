// What a take waits for, and which rows it gets.
#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/tensor/balance.h"
#include "dock/table/table.h"

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

std::string StateText(RowState state) {
  if (IsWaiting(state)) return "waits for columns";
  return absl::StrCat("is ", DeliveryStateName(DeliveryStateOf(state)));
}

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

}  // namespace

absl::Status Table::CheckTake(uint32_t index, const TakeRequest& request) const {
  if (request.rows.empty() && (request.min < 1 || request.max < request.min)) {
    return absl::InvalidArgumentError(
        absl::StrCat("min is ", request.min, " and max is ", request.max, "; 1 ≤ min ≤ max is needed"));
  }
  const ConsumerOptions& options = consumers_[index]->options();
  if (request.rank >= 0 && request.rank < options.ranks) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("consumer '", options.name, "' has ", options.ranks, " ranks; given rank ", request.rank));
}

absl::Status Table::CheckTakeOfRows(uint32_t index, const TakeRequest& request) const {
  const Consumer& consumer = *consumers_[index];
  const std::string& name = consumer.options().name;
  if (consumer.by_group()) {
    return absl::InvalidArgumentError(
        absl::StrCat("consumer '", name, "' takes whole groups: it cannot take rows by their ids"));
  }
  TDOCK_RETURN_IF_ERROR(CheckRows(request.rows));
  for (RowId row : request.rows) {
    const Place place = pages_.At(row);
    const RowState state = place.state(index);
    if (state == kReady &&
        place.row() % static_cast<RowId>(consumer.options().ranks) == static_cast<RowId>(request.rank)) {
      continue;
    }
    return absl::FailedPreconditionError(absl::StrCat("row ", row, " is not ready for consumer '", name, "': it ",
                                                      state == kReady ? "belongs to another rank" : StateText(state)));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Table::LeastToTake(uint32_t index, int32_t rank, int64_t min) const {
  if (!sealed_) return min;
  const Consumer& consumer = *consumers_[index];
  const Consumer::Share& share = consumer.share(rank);
  const std::string who = absl::StrCat("consumer '", consumer.options().name, "'",
                                       consumer.options().ranks > 1 ? absl::StrCat(", rank ", rank) : "");
  if (share.open == 0) {
    return absl::OutOfRangeError(
        absl::StrCat("partition '", options_.name, "' is sealed, and all its rows are done for ", who));
  }
  if (share.coming > 0) return std::min(min, share.coming);
  if (consumer.counts.leased > 0) return 1;
  std::string text = absl::StrCat(who, " can take no more, though not all rows are done");
  ExplainGroups(consumer, text);
  ExplainQuarantine(consumer, text);
  return absl::FailedPreconditionError(text);
}

absl::Status Table::CheckCanCome(uint32_t index, int32_t rank, int64_t min) const {
  const Consumer& consumer = *consumers_[index];
  const bool others_may_release = !consumer.retained() || consumer.counts.done > 0 || consumer.counts.leased > 0;
  if (others_may_release || consumer.share(rank).coming >= min) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "consumer '", consumer.options().name, "' waits for ", min, consumer.by_group() ? " groups" : " rows",
      " and can have ", consumer.share(rank).coming, ": the partition's max_rows of ", options_.max_rows,
      " is used up by rows that it must take first. Take fewer, or raise max_rows"));
}

absl::StatusOr<std::vector<RowId>> Table::Choose(uint32_t index, int32_t rank, int64_t min, int64_t max,
                                                 const CustomSamplers& samplers, LengthOf length_of) const {
  const Consumer& consumer = *consumers_[index];
  const Consumer::Share& share = consumer.share(rank);
  const int64_t count = std::min(max, share.takeable.size());
  const uint64_t seed = DeriveSeed(DeriveSeed(consumer.options().seed, share.takes), static_cast<uint64_t>(rank));
  std::vector<RowId> units;
  units.reserve(static_cast<size_t>(count));
  switch (consumer.options().sampler) {
    case Sampler::kFirstCome:
      share.takeable.First(count, units);
      break;
    case Sampler::kUniform: {
      Rng rng(seed);
      share.takeable.Select(DrawPlaces(count, share.takeable.size(), rng), units);
      break;
    }
    case Sampler::kLengthBalanced: {
      BalancedSampler sampler;
      TDOCK_ASSIGN_OR_RETURN(units, ChooseBy(sampler, consumer, share, min, max, seed, length_of));
      break;
    }
    case Sampler::kCustom: {
      const std::string& name = consumer.options().custom_sampler;
      absl::StatusOr<std::vector<RowId>> chosen =
          ChooseBy(*samplers.at(name), consumer, share, min, max, seed, length_of);
      if (!chosen.ok()) return Annotate(chosen.status(), absl::StrCat("sampler '", name, "'"));
      units = *std::move(chosen);
    }
  }
  return RowsOfUnits(consumer, std::move(units));
}

absl::StatusOr<std::vector<RowId>> Table::ChooseBy(CustomSampler& sampler, const Consumer& consumer,
                                                   const Consumer::Share& share, int64_t min, int64_t max,
                                                   uint64_t seed, LengthOf length_of) const {
  std::vector<Candidate> candidates;
  std::vector<size_t> chosen;
  try {
    std::vector<RowId> window;
    share.takeable.First(std::min(std::max(sampler.Window(max), max), share.takeable.size()), window);
    for (RowId unit : window) candidates.push_back(CandidateOf(consumer, unit, length_of));
    chosen = sampler.Choose(candidates, min, max, seed);
  } catch (const std::exception& error) {
    return absl::InternalError(EscapeUnprintable(error.what()));
  } catch (...) {
    return absl::InternalError("threw something other than a std::exception");
  }
  TDOCK_RETURN_IF_ERROR(CheckChoice(chosen, candidates.size(), min, max));
  std::vector<RowId> units;
  for (size_t position : chosen) units.push_back(candidates[position].row);
  return units;
}

Candidate Table::CandidateOf(const Consumer& consumer, RowId unit, LengthOf length_of) const {
  Candidate candidate{.row = unit};
  const Group* const group = consumer.by_group() ? groups_.FindByLeader(unit) : nullptr;
  const std::span<const RowId> rows = group == nullptr ? std::span(&unit, 1) : std::span(group->rows);
  const std::string& name = consumer.options().length_column;
  const uint32_t column = name.empty() ? Schema::kNone : schema_.Find(name);
  for (RowId row : rows) {
    const Place place = pages_.At(row);
    candidate.group = place.group_id();
    candidate.age = AgeOf(place);
    if (column != Schema::kNone) candidate.length += length_of(place.cell(column));
    if (const auto it = consumer.redeliveries.find(row); it != consumer.redeliveries.end()) {
      candidate.redeliveries = std::max(candidate.redeliveries, it->second);
    }
  }
  return candidate;
}

std::vector<RowId> Table::RowsOfUnits(const Consumer& consumer, std::vector<RowId> units) const {
  if (!consumer.by_group() || groups_.size() == 0) return units;
  std::vector<RowId> rows;
  for (RowId unit : units) {
    const Group* const group = groups_.FindByLeader(unit);
    if (group == nullptr) {
      rows.push_back(unit);
    } else {
      rows.insert(rows.end(), group->rows.begin(), group->rows.end());
    }
  }
  return rows;
}

}  // namespace tdock::dock
