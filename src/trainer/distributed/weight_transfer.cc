#include "trainer/distributed/weight_transfer.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
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
    TDOCK_RETURN_IF_ERROR(dock_.RegisterConsumer(options_.partition, {.name = receiver, .reads = {kPlace, kBytes}}));
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
    TDOCK_RETURN_IF_ERROR(check());
    const PlaceOfPiece place = {version, number++, before, sent.bytes, sum};
    Batch piece;
    TDOCK_RETURN_IF_ERROR(piece.Add(kPlace, Column::FromValues<int64_t>(place, {kPlaces})));
    // Without a copy: the dock copies it before Put() returns.
    const std::array<int64_t, 2> offsets = {0, static_cast<int64_t>(bytes.size())};
    TDOCK_RETURN_IF_ERROR(piece.Add(kBytes, Column::MakeBytes(Buffer::Wrap(bytes.data(), bytes.size(), nullptr),
                                                              Buffer::CopyOf(std::as_bytes(std::span(offsets))))));
    const absl::Status status =
        dock_.Put({.partition = options_.partition, .batch = std::move(piece), .deadline = deadline}).status();
    return Annotate(
        status, absl::StrCat("sending version ", version, " of the weights, ", before, " of ", sent.bytes, " bytes"));
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

absl::StatusOr<WeightsSent> WeightReceiver::Receive(model::Decoder& decoder, int64_t version, absl::Time deadline) {
  const std::vector<at::Tensor> tensors = TensorsOf(decoder);
  const WeightsSent wanted{.bytes = BytesIn(tensors)};
  RunningChecksum checksum;
  size_t tensor = 0, at = 0;  // where the next byte belongs
  int64_t before = 0;
  const auto write = [&](std::span<const std::byte> bytes) {
    checksum.Add(bytes);
    before += static_cast<int64_t>(bytes.size());
    while (!bytes.empty()) {
      const at::Tensor& into = tensors[tensor];
      const auto part = bytes.first(std::min(bytes.size(), into.nbytes() - at));
      if (into.is_cpu() && into.is_contiguous()) {
        std::memcpy(static_cast<std::byte*>(into.data_ptr()) + at, part.data(), part.size());
      } else {
        const auto element = static_cast<int64_t>(into.element_size());
        const at::Tensor source = at::from_blob(const_cast<std::byte*>(part.data()),
                                                {static_cast<int64_t>(part.size()) / element}, into.dtype());
        into.detach().view({-1}).narrow(0, static_cast<int64_t>(at) / element, source.numel()).copy_(source);
      }
      bytes = bytes.subspan(part.size());
      at += part.size();
      if (at == into.nbytes()) {
        at = 0;
        ++tensor;
      }
    }
  };
  for (int64_t number = 0;; ++number) {
    TDOCK_ASSIGN_OR_RETURN(
        const Taken taken,
        dock_.Take({.partition = options_.partition, .consumer = name_, .min = 1, .max = 1, .deadline = deadline}));
    TDOCK_ASSIGN_OR_RETURN(const std::span<const int64_t> place, taken.rows.Get<int64_t>(0, kPlace));
    TDOCK_ASSIGN_OR_RETURN(const absl::string_view text, taken.rows.Text(0, kBytes));
    if (place[kVersion] != version || place[kNumber] != number || place[kBefore] != before ||
        place[kTotal] != wanted.bytes || before + static_cast<int64_t>(text.size()) > wanted.bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "piece ", place[kNumber], " of version ", place[kVersion], ", at ", place[kBefore], " of ", place[kTotal],
          " bytes, in place of piece ", number, " of version ", version, ", at ", before, " of ", wanted.bytes));
    }
    write(std::as_bytes(std::span(text.data(), text.size())));
    TDOCK_RETURN_IF_ERROR(dock_.Complete({.partition = options_.partition, .lease = taken.lease}));
    if (!text.empty()) continue;
    const uint64_t sum = checksum.Value();
    if (before != wanted.bytes || static_cast<int64_t>(sum) != place[kChecksum]) {
      return absl::DataLossError(absl::StrCat("version ", version, " of the weights arrived with ", before, " of ",
                                              wanted.bytes, " bytes and checksum ", sum, ", and was sent with ",
                                              static_cast<uint64_t>(place[kChecksum])));
    }
    return WeightsSent{.bytes = before, .checksum = sum};
  }
}

}  // namespace tdock::trainer
