// Bytes that an outbox sends over a stream that takes any number of them at once.
#include "core/net/outbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "core/base/rng.h"
#include "core/tensor/checksum.h"

namespace tdock::net {
namespace {

// Takes as many bytes of each write as it is told.
class Sponge final : public Stream {
 public:
  Sponge(bool needs_checksums, std::function<size_t()> room)
      : Stream(nullptr), needs_checksums_(needs_checksums), room_(std::move(room)) {}

  absl::StatusOr<size_t> Read(std::span<const iovec>) override { return 0; }
  absl::StatusOr<size_t> Write(std::span<const iovec> pieces, const FileDescriptor* file) override {
    EXPECT_FALSE(pieces.empty());
    EXPECT_LE(pieces.size(), 1024u) << "the system's limit";
    if (!lost.ok()) return lost;
    const size_t room = room_();
    size_t taken = 0;
    for (const iovec& piece : pieces) {
      const size_t step = std::min(piece.iov_len, room - taken);
      bytes.append(static_cast<const char*>(piece.iov_base), step);
      taken += step;
    }
    if (file != nullptr && taken > 0) files.emplace_back(bytes.size() - taken, file);
    return taken;
  }
  short awaits() const override { return 0; }
  void EndSending() override {}
  bool passes_files() const override { return true; }
  bool needs_checksums() const override { return needs_checksums_; }

  std::string bytes;
  // With the position of the byte that each came with.
  std::vector<std::pair<size_t, const FileDescriptor*>> files;
  absl::Status lost;

 private:
  const bool needs_checksums_;
  const std::function<size_t()> room_;
};

// The data in messages that hold nothing else, whose checksums are right, or 0.
std::string DataIn(absl::string_view bytes, uint64_t tag, bool checked) {
  std::string data;
  while (!bytes.empty()) {
    const auto header = NumberAt<MessageHeader>(bytes, 0);
    EXPECT_EQ(header.type, kData);
    EXPECT_EQ(header.tag, tag);
    EXPECT_LE(header.length, kMaxDataBytes);
    const auto prefix = NumberAt<DataPrefix>(bytes, sizeof(header));
    const absl::string_view part = bytes.substr(sizeof(header) + sizeof(prefix), header.length - sizeof(prefix));
    EXPECT_EQ(prefix.offset, data.size());
    EXPECT_EQ(prefix.checksum, checked ? ChecksumOf(prefix.offset, AsBytes(part)) : 0);
    data.append(part.data(), part.size());
    bytes.remove_prefix(sizeof(header) + header.length);
  }
  return data;
}

std::string Pattern(size_t size, uint64_t seed) {
  Rng rng(seed);
  std::string bytes;
  while (bytes.size() < size) bytes.push_back(static_cast<char>(rng.Below(256)));
  return bytes;
}

// Fills a sponge with messages, data and files, that takes at most `most` bytes at once.
std::string SentWith(size_t most, bool checked) {
  const auto text = std::make_shared<const std::string>(Pattern(600'000, 1));
  Rng rng(most);
  Sponge sponge(checked, [&] { return most == SIZE_MAX ? most : 1 + rng.Below(most); });
  Outbox out;
  out.Add(MessageOf(40, 1, "first"));
  std::vector<std::span<const std::byte>> pieces;
  const auto all = AsBytes(*text);
  for (size_t at = 0; at < all.size();) {
    const size_t step = std::min<size_t>(rng.Below(10) == 0 ? rng.Below(100'000) : rng.Below(500), all.size() - at);
    pieces.push_back(all.subspan(at, step));
    at += step;
  }
  out.AddData(2, 0, pieces, text);
  out.Add(MessageOf(40, 3, ""));
  out.AddData(4, 0, {all.first(1)}, text);
  out.Add(MessageOf(40, 5, "last"));
  for (uint64_t before = out.queued_bytes(); !out.empty(); before = out.queued_bytes()) {
    EXPECT_EQ(out.Send(sponge, 1), absl::OkStatus());
    EXPECT_LE(out.queued_bytes(), before);
    EXPECT_FALSE(out.full());
  }
  EXPECT_EQ(out.queued_bytes(), 0u);
  const std::string first = MessageOf(40, 1, "first"), middle = MessageOf(40, 3, ""), last = MessageOf(40, 5, "last");
  const size_t tail = middle.size() + sizeof(MessageHeader) + sizeof(DataPrefix) + 1 + last.size();
  EXPECT_EQ(sponge.bytes.substr(0, first.size()), first);
  EXPECT_EQ(sponge.bytes.substr(sponge.bytes.size() - last.size()), last);
  EXPECT_EQ(sponge.bytes.substr(sponge.bytes.size() - tail, middle.size()), middle);
  const auto data = absl::string_view(sponge.bytes).substr(first.size(), sponge.bytes.size() - first.size() - tail);
  EXPECT_EQ(DataIn(data, 2, checked), *text);
  return sponge.bytes;
}

TEST(Outbox, SendsTheSameHoweverLittleTheStreamTakesAtOnce) {
  for (const bool checked : {false, true}) {
    for (size_t most : {size_t{1}, size_t{100}, size_t{5000}, size_t{300'000}, SIZE_MAX}) SentWith(most, checked);
  }
}

TEST(Outbox, WaitsForAStreamWithoutRoomAndGoesOn) {
  size_t room = 3;
  Sponge sponge(false, [&] { return std::exchange(room, 0); });
  Outbox out;
  out.Add("0123456789");
  EXPECT_EQ(out.Send(sponge), absl::OkStatus());
  EXPECT_TRUE(out.full());
  EXPECT_EQ(out.queued_bytes(), 7u);
  room = 100;
  EXPECT_EQ(out.Send(sponge), absl::OkStatus());
  EXPECT_TRUE(out.empty() && !out.full());
  EXPECT_EQ(sponge.bytes, "0123456789");
}

TEST(Outbox, SendsAboutAsMuchAsItIsTold) {
  Sponge sponge(false, [] { return size_t{1000}; });
  Outbox out;
  out.Add(std::string(10'000, 'x'));
  EXPECT_EQ(out.Send(sponge, 2500), absl::OkStatus());
  EXPECT_EQ(sponge.bytes.size(), 3000u);
  EXPECT_FALSE(out.full());
}

TEST(Outbox, PassesEachFileWithTheFirstByteOfItsMessage) {
  const auto first = std::make_shared<const FileDescriptor>(-1), second = std::make_shared<const FileDescriptor>(-1);
  for (size_t most : {size_t{1}, size_t{7}, SIZE_MAX}) {
    Sponge sponge(false, [&] { return most; });
    Outbox out;
    out.Add("before");
    out.Add("with the first", first);
    out.Add("between");
    out.Add("with another", second);
    EXPECT_EQ(out.Send(sponge), absl::OkStatus());
    EXPECT_EQ(sponge.bytes, "beforewith the firstbetweenwith another");
    EXPECT_THAT(sponge.files,
                testing::ElementsAre(std::pair(size_t{6}, first.get()), std::pair(size_t{27}, second.get())));
  }
}

TEST(Outbox, KeepsTheOwnerOfDataUntilItIsSent) {
  auto owner = std::make_shared<const std::string>(1000, 'x');
  const std::weak_ptr<const std::string> kept = owner;
  size_t room = 0;
  Sponge sponge(true, [&] { return std::exchange(room, 0); });
  Outbox out;
  out.AddData(1, 0, {AsBytes(*owner)}, owner);
  owner.reset();
  EXPECT_EQ(out.queued_bytes(), 1000u);
  for (const size_t step : {0, 500, 531}) {
    room = step;
    EXPECT_EQ(out.Send(sponge), absl::OkStatus());
    EXPECT_FALSE(kept.expired());
  }
  room = 1;
  EXPECT_EQ(out.Send(sponge), absl::OkStatus());
  EXPECT_TRUE(kept.expired() && out.empty());
}

TEST(Outbox, SendsNothingForDataWithoutBytes) {
  Outbox out;
  out.AddData(1, 0, {}, nullptr);
  out.AddData(1, 0, {std::span<const std::byte>(), std::span<const std::byte>()}, nullptr);
  EXPECT_TRUE(out.empty());
  Sponge sponge(true, [] { return SIZE_MAX; });
  const std::string text = "ab";
  out.AddData(1, 0, {{}, AsBytes(text).first(1), {}, AsBytes(text).subspan(1), {}}, nullptr);
  EXPECT_EQ(out.Send(sponge), absl::OkStatus());
  EXPECT_EQ(DataIn(sponge.bytes, 1, true), "ab");
}

TEST(Outbox, SaysWhyTheStreamIsLost) {
  Sponge sponge(false, [] { return size_t{1}; });
  sponge.lost = absl::UnavailableError("gone");
  Outbox out;
  out.Add("x");
  EXPECT_EQ(out.Send(sponge), absl::UnavailableError("gone"));
}

}  // namespace
}  // namespace tdock::net
