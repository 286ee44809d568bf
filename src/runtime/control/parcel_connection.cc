#include "runtime/control/parcel_connection.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/status.h"
#include "core/net/message.h"

namespace tdock::runtime {

void SendParcel(const std::shared_ptr<net::Connection>& connection, PackedParcel parcel) {
  // Also by the loop's own thread, which would otherwise overtake what others have posted.
  connection->loop().Post([connection, parcel = std::move(parcel)]() mutable {
    connection->SendData(net::MessageOf(kParcel, 0, ""), 0, std::move(parcel.pieces), std::move(parcel.owner));
  });
}

uint32_t ParcelHandler::MaxBytes(uint8_t type) const { return type == net::kGoodbye ? net::kMaxWelcomeBytes : 0; }

void ParcelHandler::RoomsFor(uint64_t, uint64_t, size_t most, std::vector<iovec>& rooms) {
  if (!begun_) return;
  const std::span<std::byte> room = reader_.Room(most);
  rooms.push_back({room.data(), room.size()});
}

absl::Status ParcelHandler::OnFilled(uint64_t, uint64_t, size_t bytes) {
  OnHeard();
  TDOCK_ASSIGN_OR_RETURN(const std::optional<Parcel> parcel, reader_.Fill(bytes));
  if (!parcel.has_value()) return absl::OkStatus();
  begun_ = false;
  return OnParcel(*parcel);
}

absl::Status ParcelHandler::OnData(uint64_t tag, uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (!begun_) return absl::InvalidArgumentError("bytes behind the end of a message");
    const std::span<std::byte> room = reader_.Room(bytes.size());
    std::copy_n(bytes.begin(), room.size(), room.begin());
    bytes = bytes.subspan(room.size());
    TDOCK_RETURN_IF_ERROR(OnFilled(tag, offset, room.size()));
  }
  return absl::OkStatus();
}

absl::Status ParcelHandler::OnMessage(const net::MessageHeader& header, absl::string_view body) {
  if (header.type == net::kGoodbye) return net::ReasonIn(body);
  if (header.type != kParcel) return absl::InvalidArgumentError("a message that has no place here");
  if (std::exchange(begun_, true)) return absl::InvalidArgumentError("a message within another");
  return absl::OkStatus();
}

}  // namespace tdock::runtime
