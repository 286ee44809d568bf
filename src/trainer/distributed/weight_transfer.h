// The journey of the weights from the process that trains to those that compute with them: through a partition of the
// run's dock, in pieces, so that both ends need little memory beside the weights.
//
//   trained weights ──► piece ─ piece ─ … ─ last, with a checksum of all ──► every receiver
//
// Only what training changes is sent: with adapters, these and a value head. A receiver's weights count as a version
// only once the last piece has come and the checksum of all that was written is that of what was sent; until then they
// are torn, and it says so to whoever asks for them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "model/decoder/decoder.h"
#include "tdock/dock.h"

namespace tdock::trainer {

struct WeightTransferOptions {
  std::string partition = "weights";
  // Small enough that a core's own cache has a piece when its checksum is known and it is copied.
  int64_t piece_bytes = int64_t{512} << 10;
  // How many may wait for a receiver. As many more, which it has taken, are being written.
  int64_t most_pieces = 16;
};

// What a transfer came to.
struct WeightsSent {
  int64_t bytes = 0;
  uint64_t checksum = 0;  // XXH3 of all bytes in their order
};

// Used by one thread at a time.
class WeightSender {
 public:
  // The dock must outlive it. `receivers` are the names of their consumers.
  WeightSender(Dock& dock, std::vector<std::string> receivers, WeightTransferOptions options = {})
      : dock_(dock), receivers_(std::move(receivers)), options_(std::move(options)) {}

  // Makes the partition, once.
  absl::Status Open();
  // Sends what is trained of the decoder, or all where nothing is, as `version`. Waits until everything was put, while
  // the receivers receive it: with a bound on what is under way, they must do so at the same time. DeadlineExceeded
  // names receivers that have not taken their pieces in time; `check` is asked between pieces and several times a
  // second while it waits, and its error ends it.
  absl::StatusOr<WeightsSent> Send(
      const model::Decoder& decoder, int64_t version, absl::Time deadline,
      const std::function<absl::Status()>& check = [] { return absl::OkStatus(); });

 private:
  absl::StatusOr<WeightsSent> SendPieces(const model::Decoder& decoder, int64_t version, absl::Time deadline,
                                         const std::function<absl::Status()>& check);

  Dock& dock_;
  const std::vector<std::string> receivers_;
  const WeightTransferOptions options_;
};

// Used by one thread at a time.
class WeightReceiver {
 public:
  // The dock must outlive it. `name` is that of its consumer.
  WeightReceiver(Dock& dock, std::string name, WeightTransferOptions options = {})
      : dock_(dock), name_(std::move(name)), options_(std::move(options)) {}

  // Writes a version that is being sent into a decoder of the same shape. After an error the decoder's weights are
  // torn. DataLoss if the checksum differs; InvalidArgument for pieces of another version or another model.
  // `check` is asked while it waits, and its error ends it.
  absl::StatusOr<WeightsSent> Receive(
      model::Decoder& decoder, int64_t version, absl::Time deadline,
      const std::function<absl::Status()>& check = [] { return absl::OkStatus(); });

 private:
  absl::StatusOr<Taken> TakePieces(absl::Time deadline, const std::function<absl::Status()>& check);
  class Progress;
  static absl::StatusOr<WeightsSent> Ended(const Progress& progress, int64_t version, uint64_t sent_checksum);

  Dock& dock_;
  const std::string name_;
  const WeightTransferOptions options_;
};

}  // namespace tdock::trainer
