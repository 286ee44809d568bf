#include "trainer/loop/feeder.h"

#include <utility>
#include <vector>

#include "core/base/status.h"

namespace tdock::trainer {

absl::StatusOr<bool> Feeder::ReadAhead() {
  if (!batch_.has_value()) {
    TDOCK_ASSIGN_OR_RETURN(batch_, loader_.Next());
  }
  return batch_.has_value();
}

absl::StatusOr<PutResult> Feeder::Feed(Dock& dock, const std::string& partition, StepMetrics& metrics) {
  TDOCK_ASSIGN_OR_RETURN(const Batch rows, options_.columns(*batch_));
  PutRequest request{.partition = partition};
  std::vector<int64_t> repeated;
  GroupId group = next_group_;
  for (size_t sample = 0; sample < batch_->size(); ++sample, ++group) {
    for (int64_t n = 0; n < options_.samples_per_prompt; ++n) {
      repeated.push_back(options_.makes_groups ? static_cast<int64_t>(repeated.size()) : static_cast<int64_t>(sample));
      request.groups.push_back(group);
    }
  }
  TDOCK_ASSIGN_OR_RETURN(request.batch, rows.SelectRows(repeated));
  absl::StatusOr<PutResult> fed = dock.Put(request);
  if (!fed.ok()) return Annotate(fed.status(), "feeding the samples");
  options_.report(*batch_, metrics);
  next_group_ = group;
  fed_ = loader_.position();
  batch_.reset();
  return fed;
}

void Feeder::Save(State& state) const {
  state.SetInteger("next_group", next_group_);
  state.SetText("data", fed_.ToText());
}

absl::Status Feeder::Load(const State& state) {
  TDOCK_ASSIGN_OR_RETURN(const int64_t next_group, state.Integer("next_group"));
  TDOCK_ASSIGN_OR_RETURN(const std::string text, state.Text("data"));
  TDOCK_ASSIGN_OR_RETURN(const data::LoaderPosition position, data::LoaderPosition::FromText(text));
  next_group_ = static_cast<GroupId>(next_group);
  if (position.order != order()) {
    begun_anew_ = true;
    return absl::OkStatus();
  }
  TDOCK_RETURN_IF_ERROR(loader_.Resume(position));
  fed_ = position;
  return absl::OkStatus();
}

}  // namespace tdock::trainer
