#include "trainer/distributed/weight_transfer.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/tensor/bulk_copy.h"
#include "core/tensor/checksum.h"
#include "tdock/batch.h"
#include "tdock/column.h"

namespace tdock::trainer {
namespace {

// The columns of a piece: where it belongs, and its bytes.
constexpr char kPlace[] = "place", kBytes[] = "bytes";
// Of kPlace: the version; the number of the piece; how many bytes are before it, and are sent in all; and of the last
// one, which has no bytes, the checksum, otherwise 0.
enum Place : size_t { kVersion, kNumber, kBefore, kTotal, kChecksum, kPlaces };
using PlaceOfPiece = std::array<int64_t, kPlaces>;

// How often a sender that waits for room looks whether it must end.
constexpr absl::Duration kBetweenChecks = absl::Milliseconds(50);
// The same of a receiver that waits for pieces, by a call to another process.
constexpr absl::Duration kTakeAtMost = absl::Seconds(1);
// What a core's own cache holds beside the place it is written to: read from memory once, for the checksum and the
// copy.
constexpr size_t kBlockBytes = size_t{128} << 10;

// What training changes; all where nothing is trained. In the same order in every process.
std::vector<at::Tensor> TensorsOf(const model::Decoder& decoder) {
  std::vector<at::Tensor> tensors = decoder.trainable();
  return tensors.empty() ? decoder.parameters() : tensors;
}

int64_t BytesIn(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

}  // namespace

absl::Status WeightSender::Open() {
  TDOCK_RETURN_IF_ERROR(dock_.CreatePartition(
      {.name = options_.partition,
       .columns = {{kPlace, ColumnType::Dense(kDTypeOf<int64_t>, {kPlaces})}, {kBytes, ColumnType::Bytes()}},
       .retain_for = receivers_,
       .max_rows = options_.most_pieces}));
  for (const std::string& receiver : receivers_) {
    TDOCK_RETURN_IF_ERROR(dock_.RegisterConsumer(options_.partition,
                                                 {.name = receiver, .reads = {kPlace, kBytes}, .at_most_once = true}));
  }
  return absl::OkStatus();
}

absl::StatusOr<WeightsSent> WeightSender::Send(const model::Decoder& decoder, int64_t version, absl::Time deadline,
                                               const std::function<absl::Status()>& check) {
  absl::StatusOr<WeightsSent> sent = SendPieces(decoder, version, deadline, check);
  // What is left of them would be taken for those of the next version.
  if (!sent.ok()) dock_.Clear({.partition = options_.partition, .everything = true}).IgnoreError();
  return sent;
}

absl::StatusOr<WeightsSent> WeightSender::SendPieces(const model::Decoder& decoder, int64_t version,
                                                     absl::Time deadline, const std::function<absl::Status()>& check) {
  const std::vector<at::Tensor> tensors = TensorsOf(decoder);
  WeightsSent sent{.bytes = BytesIn(tensors)};
  RunningChecksum checksum;
  int64_t before = 0, number = 0;
  const auto put = [&](std::span<const std::byte> bytes, int64_t sum) -> absl::Status {
    const PlaceOfPiece place = {version, number++, before, sent.bytes, sum};
    Batch piece;
    TDOCK_RETURN_IF_ERROR(piece.Add(kPlace, Column::FromValues<int64_t>(place, {kPlaces})));
    // Without a copy: the dock copies it before Put() returns.
    const std::array<int64_t, 2> offsets = {0, static_cast<int64_t>(bytes.size())};
    TDOCK_RETURN_IF_ERROR(piece.Add(kBytes, Column::MakeBytes(Buffer::Wrap(bytes.data(), bytes.size(), nullptr),
                                                              Buffer::CopyOf(std::as_bytes(std::span(offsets))))));
    PutRequest request{.partition = options_.partition, .batch = std::move(piece)};
    for (;;) {
      TDOCK_RETURN_IF_ERROR(check());
      request.deadline = std::min(deadline, absl::Now() + kBetweenChecks);
      const absl::Status status = dock_.Put(request).status();
      if (absl::IsDeadlineExceeded(status) && absl::Now() < deadline) continue;
      return Annotate(
          status, absl::StrCat("sending version ", version, " of the weights, ", before, " of ", sent.bytes, " bytes"));
    }
  };
  for (const at::Tensor& parameter : tensors) {
    const at::Tensor tensor = parameter.detach().cpu().contiguous();
    const std::span<const std::byte> all(static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes());
    for (size_t at = 0; at < all.size();) {
      const auto piece = all.subspan(at, std::min(all.size() - at, static_cast<size_t>(options_.piece_bytes)));
      checksum.Add(piece);
      TDOCK_RETURN_IF_ERROR(put(piece, 0));
      at += piece.size();
      before += static_cast<int64_t>(piece.size());
    }
  }
  sent.checksum = checksum.Value();
  TDOCK_RETURN_IF_ERROR(put({}, static_cast<int64_t>(sent.checksum)));
  return sent;
}

// Where the next bytes of the weights belong, and the checksum of those that have come.
class WeightReceiver::Progress {
 public:
  explicit Progress(std::vector<at::Tensor> tensors)
      : tensors_(std::move(tensors)), wanted_(BytesIn(tensors_)), copy_(static_cast<size_t>(wanted_)) {}

  int64_t wanted() const { return wanted_; }
  int64_t before() const { return before_; }
  uint64_t checksum() const { return checksum_.Value(); }

  // Not more bytes than are missing.
  void Write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const at::Tensor& into = tensors_[tensor_];
      const size_t most = into.is_cpu() ? kBlockBytes : bytes.size();  // another device has a cache of its own
      const auto part = bytes.first(std::min({bytes.size(), into.nbytes() - at_, most}));
      checksum_.Add(part);
      WriteTo(into, part);
      bytes = bytes.subspan(part.size());
      before_ += static_cast<int64_t>(part.size());
      at_ += part.size();
      if (at_ == into.nbytes()) {
        at_ = 0;
        ++tensor_;
      }
    }
  }

 private:
  void WriteTo(const at::Tensor& into, std::span<const std::byte> part) const {
    if (into.is_cpu() && into.is_contiguous()) {
      copy_(static_cast<std::byte*>(into.data_ptr()) + at_, part.data(), part.size());
      return;
    }
    const auto element = static_cast<int64_t>(into.element_size());
    const at::Tensor source =
        at::from_blob(const_cast<std::byte*>(part.data()), {static_cast<int64_t>(part.size()) / element}, into.dtype());
    into.detach().view({-1}).narrow(0, static_cast<int64_t>(at_) / element, source.numel()).copy_(source);
  }

  const std::vector<at::Tensor> tensors_;
  const int64_t wanted_;
  const BulkCopy copy_;
  RunningChecksum checksum_;
  size_t tensor_ = 0, at_ = 0;
  int64_t before_ = 0;
};

absl::StatusOr<Taken> WeightReceiver::TakePieces(absl::Time deadline, const std::function<absl::Status()>& check) {
  for (;;) {
    TDOCK_RETURN_IF_ERROR(check());
    absl::StatusOr<Taken> taken = dock_.Take({.partition = options_.partition,
                                              .consumer = name_,
                                              .min = 1,
                                              .max = options_.most_pieces,
                                              .deadline = std::min(deadline, absl::Now() + kTakeAtMost)});
    if (!absl::IsDeadlineExceeded(taken.status()) || absl::Now() >= deadline) return taken;
  }
}

absl::StatusOr<WeightsSent> WeightReceiver::Receive(model::Decoder& decoder, int64_t version, absl::Time deadline,
                                                    const std::function<absl::Status()>& check) {
  Progress progress(TensorsOf(decoder));
  for (int64_t number = 0;;) {
    // All that are there: to ask takes as long as to write one of them.
    TDOCK_ASSIGN_OR_RETURN(const Taken taken, TakePieces(deadline, check));
    for (size_t row = 0; row < taken.rows.size(); ++row, ++number) {
      TDOCK_ASSIGN_OR_RETURN(const std::span<const int64_t> place, taken.rows.Get<int64_t>(row, kPlace));
      TDOCK_ASSIGN_OR_RETURN(const absl::string_view text, taken.rows.Text(row, kBytes));
      if (place[kVersion] != version || place[kNumber] != number || place[kBefore] != progress.before() ||
          place[kTotal] != progress.wanted() ||
          progress.before() + static_cast<int64_t>(text.size()) > progress.wanted()) {
        return absl::InvalidArgumentError(absl::StrCat("piece ", place[kNumber], " of version ", place[kVersion],
                                                       ", at ", place[kBefore], " of ", place[kTotal],
                                                       " bytes, in place of piece ", number, " of version ", version,
                                                       ", at ", progress.before(), " of ", progress.wanted()));
      }
      if (text.empty()) return Ended(progress, version, static_cast<uint64_t>(place[kChecksum]));
      progress.Write(std::as_bytes(std::span(text.data(), text.size())));
    }
  }
}

absl::StatusOr<WeightsSent> WeightReceiver::Ended(const Progress& progress, int64_t version, uint64_t sent_checksum) {
  const uint64_t checksum = progress.checksum();
  if (progress.before() != progress.wanted() || checksum != sent_checksum) {
    return absl::DataLossError(absl::StrCat("version ", version, " of the weights arrived with ", progress.before(),
                                            " of ", progress.wanted(), " bytes and checksum ", checksum,
                                            ", and was sent with ", sent_checksum));
  }
  return WeightsSent{.bytes = progress.before(), .checksum = checksum};
}

}  // namespace tdock::trainer
