// Batches from a source, epoch after epoch.
//
//   LoaderOptions options{.batch_size = 32, .workers = 2};
//   Loader<EncodedSample> loader(source, options);
//   while (true) {
//     absl::StatusOr<std::optional<std::vector<EncodedSample>>> batch = loader.Next();
//     …
//     checkpoint.data = loader.position().ToText();   // the next batch follows from here
//   }
//
// The order depends only on the seed and the number of the epoch: shuffling draws a permutation of all indexes for each
// epoch, which takes 8 bytes per sample. Neither the number of workers nor resuming changes the result.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "data/prefetch.h"
#include "data/source.h"
#include "text/shuffled_indexes.h"

namespace tdock::data {

struct LoaderOptions {
  int64_t batch_size = 1;
  bool shuffle = true;
  uint64_t seed = 1;
  bool drop_last = true;          // at the end of an epoch, leave out samples that do not fill a batch
  int64_t epochs = 0;             // 0: no limit
  int workers = 0;                // threads that load ahead; 0: the calling thread loads
  bool skip_bad_records = false;  // otherwise the first one is an error
  // Called for each bad record that is skipped, on the thread that calls Next().
  std::function<void(const absl::Status&)> report = [](const absl::Status&) {};
};

// Counters of a loader.
struct LoaderCounts {
  int64_t samples = 0;     // in batches, or left out by drop_last
  int64_t bad = 0;         // records that were skipped
  int64_t incomplete = 0;  // records that lack what the phase needs
  int64_t overlong = 0;    // dropped
  int64_t truncated = 0;   // cut, but used

  friend bool operator==(const LoaderCounts&, const LoaderCounts&) = default;
};

// The position of a loader.
struct LoaderPosition {
  int64_t drawn = 0;          // samples requested from the source, over all epochs
  int64_t epoch_samples = 0;  // how many of this epoch's there were
  LoaderCounts counts;
  text::ContentHash order;  // of the source, and of the options that determine the order

  // One line.
  std::string ToText() const;
  // InvalidArgument for anything that ToText() does not produce.
  static absl::StatusOr<LoaderPosition> FromText(absl::string_view text);

  friend bool operator==(const LoaderPosition&, const LoaderPosition&) = default;
};

// Whether a sample was truncated.
inline bool WasTruncated(const EncodedSample& sample) { return sample.truncated; }
template <class T>
bool WasTruncated(const T&) {
  return false;
}

// Not thread-safe.
template <class T>
class Loader {
 public:
  using Batch = std::vector<T>;

  // The source must outlive the loader. Neither its size nor the batch size may be 0.
  Loader(const Source<T>& source, LoaderOptions options);

  // The next batch; nothing after the last epoch. The error of a bad record, unless bad records are skipped, and that
  // of a failing source are permanent. FailedPrecondition if a whole epoch yields no batch: it has no sample, or with
  // drop_last fewer than batch_size.
  absl::StatusOr<std::optional<Batch>> Next();

  // After the last batch that Next() returned. An error does not move it, so that resuming from it loses nothing.
  const LoaderPosition& position() const { return position_; }

  // Resumes where a loader of the same source, shuffling and seed was. FailedPrecondition for another's position.
  absl::Status Resume(const LoaderPosition& position);

 private:
  // Consecutive samples of one epoch.
  struct Piece {
    std::vector<int64_t> indexes;
    bool ends_epoch = false;
  };
  struct Loaded {
    std::vector<absl::StatusOr<OrSkip<T>>> samples;
    bool ends_epoch = false;
  };

  void Start();
  std::optional<Piece> NextPiece();
  absl::Status Take(absl::StatusOr<OrSkip<T>>& sample, Batch& batch);
  absl::Status EndEpoch();
  Batch Give(Batch& batch);

  static constexpr int64_t kPieceSize = 128;

  const Source<T>& source_;
  const LoaderOptions options_;
  LoaderPosition position_;
  LoaderPosition reached_;  // what was taken from the source, including an incomplete batch
  absl::Status failed_;
  int64_t planned_ = 0;                            // samples that pieces were made of
  std::optional<text::ShuffledIndexes> shuffled_;  // from planned_ on
  std::optional<Loaded> current_;
  size_t next_in_current_ = 0;
  std::unique_ptr<Prefetch<Piece, Loaded>> prefetch_;  // uses what is above
};

template <class T>
Loader<T>::Loader(const Source<T>& source, LoaderOptions options) : source_(source), options_(std::move(options)) {
  TDOCK_CHECK(source.size() > 0, "a source that is loaded from has samples");
  TDOCK_CHECK(options_.batch_size > 0, "a batch has samples");
  text::ContentHasher hasher;
  hasher.AddField(text::Hex(source.content()));
  hasher.AddField(options_.shuffle ? absl::StrCat("shuffled ", options_.seed) : "in order");
  position_.order = hasher.Value();
  Start();
}

template <class T>
void Loader<T>::Start() {
  prefetch_.reset();
  current_.reset();
  // A batch may have been the last of its epoch.
  if (position_.drawn % source_.size() == 0) position_.epoch_samples = 0;
  reached_ = position_;
  planned_ = position_.drawn;
  if (options_.shuffle) shuffled_.emplace(source_.size(), options_.seed, planned_);
  prefetch_ = std::make_unique<Prefetch<Piece, Loaded>>(
      options_.workers, [this] { return NextPiece(); },
      [this](Piece piece) { return Loaded{.samples = source_.Load(piece.indexes), .ends_epoch = piece.ends_epoch}; });
}

template <class T>
std::optional<typename Loader<T>::Piece> Loader<T>::NextPiece() {
  const int64_t size = source_.size();
  const int64_t in_epoch = planned_ % size;
  if (options_.epochs > 0 && planned_ / size >= options_.epochs) return std::nullopt;
  const int64_t count = std::min(kPieceSize, size - in_epoch);
  Piece piece{.indexes = {}, .ends_epoch = in_epoch + count == size};
  if (shuffled_) {
    piece.indexes = shuffled_->Next(count);
  } else {
    piece.indexes.resize(static_cast<size_t>(count));
    std::iota(piece.indexes.begin(), piece.indexes.end(), in_epoch);
  }
  planned_ += count;
  return piece;
}

template <class T>
absl::Status Loader<T>::Take(absl::StatusOr<OrSkip<T>>& sample, Batch& batch) {
  ++reached_.drawn;
  if (!sample.ok()) {
    if (!options_.skip_bad_records || sample.status().code() != absl::StatusCode::kInvalidArgument) {
      return sample.status();
    }
    ++reached_.counts.bad;
    options_.report(sample.status());
  } else if (const Skip* skip = std::get_if<Skip>(&*sample)) {
    ++(*skip == Skip::kOverlong ? reached_.counts.overlong : reached_.counts.incomplete);
  } else {
    T& item = std::get<T>(*sample);
    ++reached_.counts.samples;
    ++reached_.epoch_samples;
    if (WasTruncated(item)) ++reached_.counts.truncated;
    batch.push_back(std::move(item));
  }
  return absl::OkStatus();
}

template <class T>
absl::Status Loader<T>::EndEpoch() {
  const int64_t samples = std::exchange(reached_.epoch_samples, 0);
  if (samples >= (options_.drop_last ? options_.batch_size : 1)) return absl::OkStatus();
  const LoaderCounts& counts = reached_.counts;
  const std::string left_out =
      absl::StrCat(counts.bad, " bad, ", counts.incomplete, " incomplete, ", counts.overlong, " overlong so far");
  if (samples == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("none of the ", source_.size(), " records yields a sample: ", left_out));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "an epoch has no batch: batch_size is ", options_.batch_size, ", only ", samples, " of the ", source_.size(),
      " records yield a sample (", left_out, "), and drop_last leaves out incomplete batches"));
}

template <class T>
typename Loader<T>::Batch Loader<T>::Give(Batch& batch) {
  position_ = reached_;
  return std::move(batch);
}

template <class T>
absl::StatusOr<std::optional<typename Loader<T>::Batch>> Loader<T>::Next() {
  Batch batch;
  while (failed_.ok()) {
    if (!current_ || next_in_current_ == current_->samples.size()) {
      const bool epoch_ended = current_ && current_->ends_epoch;
      current_.reset();
      if (epoch_ended) {
        failed_ = EndEpoch();
        if (!failed_.ok()) break;
        if (!batch.empty() && !options_.drop_last) return Give(batch);
        batch.clear();
      }
      current_ = prefetch_->Next();
      next_in_current_ = 0;
      if (!current_) {
        position_ = reached_;
        return std::nullopt;
      }
    }
    failed_ = Take(current_->samples[next_in_current_++], batch);
    if (static_cast<int64_t>(batch.size()) == options_.batch_size) return Give(batch);
  }
  return failed_;
}

template <class T>
absl::Status Loader<T>::Resume(const LoaderPosition& position) {
  if (position.order != position_.order) {
    return absl::FailedPreconditionError(
        "the position belongs to other data, or another order: the data set, its adapter, the tokenizer, the "
        "template, the encoding, shuffle and seed must be the same as then");
  }
  position_ = position;
  failed_ = absl::OkStatus();
  Start();
  return absl::OkStatus();
}

}  // namespace tdock::data
