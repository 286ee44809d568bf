// What the steps of a run are fed with: batches of its data, as rows of a dock.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "data/encode.h"
#include "data/loader.h"
#include "tdock/dock.h"
#include "trainer/checkpoint/state.h"
#include "trainer/stages/step_metrics.h"

namespace tdock::trainer {

// Its state is the position behind what was fed. Used by one thread at a time.
class Feeder final : public Stateful {
 public:
  using Samples = std::span<const data::EncodedSample>;
  struct Options {
    int64_t samples_per_prompt = 1;  // rows of a group
    // Whether `columns` makes all rows of each sample's group, one after another, instead of one to be repeated.
    bool makes_groups = false;
    std::function<absl::StatusOr<Batch>(Samples)> columns;
    std::function<void(Samples, StepMetrics&)> report = [](Samples, StepMetrics&) {};
  };

  // The source must outlive it.
  Feeder(const data::Source<data::EncodedSample>& source, const data::LoaderOptions& options)
      : loader_(source, options), fed_(loader_.position()) {}
  void SetOptions(Options options) { options_ = std::move(options); }

  // Reads the next batch, if there is none that was read and not fed; false at the end of the data.
  absl::StatusOr<bool> ReadAhead();

  // Puts the batch that was read into the partition.
  absl::StatusOr<PutResult> Feed(Dock& dock, const std::string& partition, StepMetrics& metrics);

  // After what was fed.
  const data::LoaderPosition& position() const { return fed_; }
  // The order of the samples.
  const text::ContentHash& order() const { return loader_.position().order; }

  void Save(State& state) const override;
  // Other data than those that were fed are gone through from their beginning.
  absl::Status Load(const State& state) override;
  bool begun_anew() const { return begun_anew_; }

 private:
  data::Loader<data::EncodedSample> loader_;
  data::LoaderPosition fed_;
  Options options_;
  std::optional<data::Loader<data::EncodedSample>::Batch> batch_;
  GroupId next_group_ = 0;
  bool begun_anew_ = false;
};

}  // namespace tdock::trainer
