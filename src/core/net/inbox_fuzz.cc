// Whatever arrives over a connection, in whatever pieces: the same messages and the same data are handed over, up to
// the same error. And a hello that can be read says the same again.
//
// The first byte says how many bytes are read at once, and where data goes; the others arrive.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/net/inbox.h"

namespace tdock::net {
namespace {

// Bytes, of which each read gets a few.
class Bytes final : public Stream {
 public:
  Bytes(absl::string_view bytes, size_t step) : Stream(nullptr), bytes_(bytes), step_(step) {}

  absl::StatusOr<size_t> Read(std::span<const iovec> into) override {
    if (bytes_.empty()) return absl::UnavailableError("the end");
    size_t got = 0;
    for (const iovec& piece : into) {
      const size_t size = std::min({piece.iov_len, bytes_.size(), step_ - got});
      std::memcpy(piece.iov_base, bytes_.data(), size);
      bytes_.remove_prefix(size);
      got += size;
    }
    if (got == 0) std::abort();  // nobody may ask for nothing
    return got;
  }
  absl::StatusOr<size_t> Write(std::span<const iovec>, const FileDescriptor*) override { return 0; }
  short awaits() const override { return 0; }
  void EndSending() override {}
  bool passes_files() const override { return false; }
  bool needs_checksums() const override { return true; }

 private:
  absl::string_view bytes_;
  const size_t step_;
};

// Writes down what arrives; with rooms, data of odd tags goes there.
class Writer final : public Recipient {
 public:
  explicit Writer(bool rooms) : rooms_(rooms) {}

  uint32_t MaxBytes(uint8_t type) const override {
    return type == kHello || type == kWelcome ? 2000 : type >= 32 && type < 64 ? 100'000 : 0;
  }
  void RoomsFor(uint64_t tag, uint64_t, size_t most, std::vector<iovec>& rooms) override {
    if (!rooms_ || tag % 2 == 0) return;
    for (std::string& room : room_) {
      const size_t size = std::min(most, room.size());
      if (size > 0) rooms.push_back({room.data(), size});
      most -= size;
    }
  }
  absl::Status OnFilled(uint64_t tag, uint64_t, size_t bytes) override {
    if (bytes == 0) std::abort();
    for (const std::string& room : room_) {
      const size_t step = std::min(bytes, room.size());
      data_[tag].append(room, 0, step);
      bytes -= step;
    }
    if (bytes != 0) std::abort();
    return absl::OkStatus();
  }
  absl::Status OnData(uint64_t tag, uint64_t, std::span<const std::byte> bytes) override {
    data_[tag].append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return absl::OkStatus();
  }

  std::string messages_;
  std::map<uint64_t, std::string> data_;

 private:
  const bool rooms_;
  std::array<std::string, 3> room_{std::string(7, '\0'), std::string(7, '\0'), std::string(7, '\0')};
};

absl::Status ReadAll(absl::string_view bytes, size_t step, Writer& writer) {
  Bytes stream(bytes, step);
  Inbox inbox(writer);
  for (;;) {
    const auto message = inbox.Next();
    if (!message.ok()) return message.status();
    if (message->has_value()) {
      const auto& [header, body] = **message;
      if (body.size() != header.length || body.size() > writer.MaxBytes(header.type)) std::abort();
      absl::StrAppend(&writer.messages_, header.type, " ", header.tag, " ", body, "\n");
      continue;
    }
    if (const auto arrived = inbox.Read(stream); !arrived.ok()) return arrived.status();
  }
}

void TryHello(absl::string_view bytes) {
  const absl::StatusOr<Hello> hello = DecodeHello(bytes);
  if (hello.ok() && Encode(*hello) != bytes) std::abort();
  if (ReasonIn(bytes).ok()) std::abort();
}

void Try(uint8_t how, absl::string_view bytes) {
  TryHello(bytes);
  Writer whole(false), pieces((how & 1) != 0);
  const absl::Status status = ReadAll(bytes, SIZE_MAX, whole);
  if (ReadAll(bytes, 1 + how / 2, pieces).code() != status.code() || whole.messages_ != pieces.messages_) std::abort();
  // Damaged data may have been told of in part.
  if (!absl::StrContains(status.message(), "damaged") && whole.data_ != pieces.data_) std::abort();
}

}  // namespace
}  // namespace tdock::net

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  tdock::net::Try(data[0], absl::string_view(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}
