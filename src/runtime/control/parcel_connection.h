// Parcels over connections of core/net. For this module only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/net/connection.h"
#include "runtime/control/parcel.h"

namespace tdock::runtime {

// The message that each parcel begins with.
inline constexpr uint8_t kParcel = 32;
// A connection queues all that is sent: if both sides read nothing until the other did, neither would.
inline constexpr size_t kMaxQueuedBytes = SIZE_MAX;

// Sends it after those of earlier calls, by whatever thread. Thread-safe.
void SendParcel(const std::shared_ptr<net::Connection>& connection, PackedParcel parcel);

// Reads parcels. What is no parcel ends the connection, and so does what OnParcel() refuses.
class ParcelHandler : public net::Handler {
 public:
  uint32_t MaxBytes(uint8_t type) const final;
  void RoomsFor(uint64_t tag, uint64_t offset, size_t most, std::vector<iovec>& rooms) final;
  absl::Status OnFilled(uint64_t tag, uint64_t offset, size_t bytes) final;
  absl::Status OnData(uint64_t tag, uint64_t offset, std::span<const std::byte> bytes) final;
  // A goodbye closes the connection, with its reason.
  absl::Status OnMessage(const net::MessageHeader& header, absl::string_view body) final;

 private:
  // Something has arrived.
  virtual void OnHeard() = 0;
  virtual absl::Status OnParcel(const Parcel& parcel) = 0;

  ParcelReader reader_;
  bool begun_ = false;  // a parcel that has not arrived completely
};

}  // namespace tdock::runtime
