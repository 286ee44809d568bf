// Messages that arrive in pieces, and what is wrong with some.
#include "core/net/inbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/testing/fails.h"

namespace tdock::net {
namespace {

using testing::ElementsAre;

constexpr uint8_t kShort = 50, kLong = 51;  // types of at most 10 bytes, and of 100,000

std::string DataMessage(uint64_t tag, absl::string_view bytes, bool checked = true) {
  const DataPrefix prefix{.checksum = checked ? ChecksumOf(0, AsBytes(bytes)) : 0};
  return MessageOf(kData, tag,
                   std::string(reinterpret_cast<const char*>(&prefix), sizeof(prefix)) + std::string(bytes));
}

// Writes down what arrives. Data of tag 2 goes to rooms of its own.
class Writer final : public Recipient {
 public:
  explicit Writer(std::vector<size_t> room_bytes = {}) : room_bytes_(std::move(room_bytes)) {
    for (size_t bytes : room_bytes_) rooms_.emplace_back(bytes, '.');
  }

  uint32_t MaxBytes(uint8_t type) const override { return type == kShort ? 10 : type == kLong ? 100'000 : 0; }
  void RoomsFor(uint64_t tag, uint64_t, size_t most, std::vector<iovec>& rooms) override {
    if (tag != 2) return;
    size_t begin = 0;
    for (std::string& room : rooms_) {
      const size_t used = std::min(room.size(), filled_ - std::min(filled_, begin));
      const size_t size = std::min(most, room.size() - used);
      if (size > 0) rooms.push_back({room.data() + used, size});
      most -= size;
      begin += room.size();
    }
  }
  absl::Status OnFilled(uint64_t tag, uint64_t, size_t bytes) override {
    EXPECT_EQ(tag, 2u);
    filled_ += bytes;
    return absl::OkStatus();
  }
  absl::Status OnData(uint64_t tag, uint64_t, std::span<const std::byte> bytes) override {
    const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    size_t at = 0;
    // As much as there are rooms goes there.
    size_t begin = 0;
    for (std::string& room : rooms_) {
      if (tag != 2) break;
      for (; at < text.size() && filled_ >= begin && filled_ < begin + room.size(); ++at) {
        room[filled_++ - begin] = text[at];
      }
      begin += room.size();
    }
    if (at < text.size()) absl::StrAppend(&data_[tag], text.substr(at));
    return absl::OkStatus();
  }

  std::string InRooms() const {
    std::string all;
    for (const std::string& room : rooms_) all += room;
    return all.substr(0, filled_);
  }
  std::map<uint64_t, std::string> data_;
  size_t filled_ = 0;

 private:
  const std::vector<size_t> room_bytes_;
  std::vector<std::string> rooms_;
};

// An inbox, and the other end of its stream.
class Mailbox {
 public:
  explicit Mailbox(Recipient& recipient) : inbox(recipient) {
    std::array<int, 2> ends{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
    stream = MakePlainStream(std::make_unique<FileDescriptor>(ends[0]), true, false);
    there = std::make_unique<FileDescriptor>(ends[1]);
  }
  // Reads what was said until nothing is left, and returns the messages, "type tag body" each.
  absl::StatusOr<std::vector<std::string>> After(absl::string_view said) {
    EXPECT_EQ(send(there->fd(), said.data(), said.size(), MSG_NOSIGNAL), static_cast<ssize_t>(said.size()));
    std::vector<std::string> all;
    for (;;) {
      TDOCK_ASSIGN_OR_RETURN(const auto message, inbox.Next());
      if (message.has_value()) {
        all.push_back(absl::StrCat(message->header.type, " ", message->header.tag, " ", message->body));
        continue;
      }
      TDOCK_ASSIGN_OR_RETURN(const Inbox::Arrived arrived, inbox.Read(*stream));
      if (arrived == Inbox::Arrived::kNothing) return all;
    }
  }

  Inbox inbox;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<FileDescriptor> there;
};

TEST(Inbox, HandsOverTheSameWhereverTheBytesAreCut) {
  const std::string all = MessageOf(kShort, 1, "first") + DataMessage(2, "0123456789") +
                          DataMessage(2, "abcdef", false) + MessageOf(kShort, 0, "") + DataMessage(9, "other") +
                          DataMessage(2, "") + DataMessage(2, "UVWXYZ") + MessageOf(kLong, ~uint64_t{0}, "last");
  const std::string expected = "0123456789abcdefUVWXYZ";
  for (const std::vector<size_t>& room_bytes : std::vector<std::vector<size_t>>{{}, {22}, {3, 4, 15}, {5, 6}, {100}}) {
    size_t there = 0;
    for (size_t bytes : room_bytes) there += bytes;
    const std::string in_rooms = expected.substr(0, there), behind = expected.substr(in_rooms.size());
    for (size_t cut = 0; cut <= all.size(); ++cut) {
      Writer writer(room_bytes);
      Mailbox mailbox(writer);
      std::vector<std::string> messages = mailbox.After(all.substr(0, cut)).value();
      const std::vector<std::string> rest = mailbox.After(all.substr(cut)).value();
      messages.insert(messages.end(), rest.begin(), rest.end());
      EXPECT_THAT(messages, ElementsAre("50 1 first", "50 0 ", absl::StrCat("51 ", ~uint64_t{0}, " last")));
      EXPECT_EQ(writer.InRooms(), in_rooms) << "cut at " << cut;
      EXPECT_EQ(writer.data_[2], behind) << "cut at " << cut;
      EXPECT_EQ(writer.data_[9], "other");
    }
  }
}

TEST(Inbox, HandsOverTheSameByteByByte) {
  Writer writer({7});
  Mailbox mailbox(writer);
  std::vector<std::string> messages;
  for (char byte : MessageOf(kShort, 1, "a") + DataMessage(2, "0123456789") + MessageOf(kShort, 2, "b")) {
    const std::vector<std::string> some = mailbox.After(std::string(1, byte)).value();
    messages.insert(messages.end(), some.begin(), some.end());
  }
  EXPECT_THAT(messages, ElementsAre("50 1 a", "50 2 b"));
  EXPECT_EQ(writer.InRooms() + writer.data_[2], "0123456789");
}

TEST(Inbox, TakesMessagesThatAreLongerThanItReadsAtOnce) {
  Writer writer;
  Mailbox mailbox(writer);
  const std::string body(100'000, 'x');
  EXPECT_THAT(mailbox.After(MessageOf(kLong, 1, body)).value(), ElementsAre("51 1 " + body));
}

TEST(Inbox, RefusesDataOfWhichABitIsWrongBeforeItTellsOfItsEnd) {
  const std::string right = DataMessage(2, "0123456789");
  for (const bool rooms : {false, true}) {
    // Behind the header, and but for a checksum of 0.
    for (size_t at = sizeof(MessageHeader); at < right.size(); ++at) {
      std::string wrong = right;
      wrong[at] = static_cast<char>(wrong[at] ^ 0x10);
      Writer writer(rooms ? std::vector<size_t>{10} : std::vector<size_t>{});
      Mailbox mailbox(writer);
      EXPECT_EQ(mailbox.After(wrong.substr(0, wrong.size() - 4)).status(), absl::OkStatus());
      EXPECT_THAT(mailbox.After(wrong.substr(wrong.size() - 4)).status(),
                  Fails(absl::StatusCode::kUnavailable, {"call 2", "damaged"}));
      EXPECT_LT(writer.filled_ + writer.data_[2].size(), 10u);
    }
  }
}

TEST(Inbox, DoesNotLookAtDataWithoutAChecksum) {
  Writer writer;
  Mailbox mailbox(writer);
  std::string wrong = DataMessage(2, "right", false);
  wrong.back() = '!';
  EXPECT_EQ(mailbox.After(wrong).status(), absl::OkStatus());
  EXPECT_EQ(writer.data_[2], "righ!");
}

absl::Status After(absl::string_view said) {
  Writer writer;
  Mailbox mailbox(writer);
  return mailbox.After(said).status();
}

TEST(Inbox, RefusesMessagesThatAreTooLongFromTheirHeadersOn) {
  const auto header = [](uint8_t type, uint32_t length) {
    std::string bytes;
    AppendHeader(type, 0, length, &bytes);
    return bytes;
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(After(header(kShort, 11)), Fails(kInvalid, {"type 50", "11 bytes", "10"}));
  EXPECT_THAT(After(header(kLong, ~0u)), Fails(kInvalid, {"type 51", "4294967295 bytes"}));
  EXPECT_THAT(After(header(kData, kMaxDataBytes + 1)), Fails(kInvalid, {"type 4", "1048577"}));
  EXPECT_THAT(After(header(77, 1)), Fails(kInvalid, {"type 77", "1 bytes"}));
  EXPECT_EQ(After(header(kShort, 10)), absl::OkStatus());
}

TEST(Inbox, RefusesDataWithoutItsPrefix) {
  for (size_t size = 0; size < sizeof(DataPrefix); ++size) {
    EXPECT_THAT(After(MessageOf(kData, 1, std::string(size, 'x'))),
                Fails(absl::StatusCode::kInvalidArgument, {"prefix"}));
  }
}

TEST(Inbox, RefusesReservedBytesThatAreNotZero) {
  for (size_t at : {5, 6, 7}) {
    std::string message = MessageOf(kShort, 1, "a");
    message[at] = '\x80';
    EXPECT_THAT(After(message), Fails(absl::StatusCode::kInvalidArgument, {"type 50"}));
  }
}

TEST(Inbox, TellsOfTheEndWhenAllBeforeItWasHandedOver) {
  Writer writer;
  Mailbox mailbox(writer);
  EXPECT_THAT(mailbox.After(MessageOf(kShort, 1, "a") + MessageOf(kShort, 2, "b").substr(0, 16)).value(),
              ElementsAre("50 1 a"));
  mailbox.there.reset();
  EXPECT_TRUE(absl::IsUnavailable(mailbox.inbox.Read(*mailbox.stream).status()));
}

TEST(Inbox, HandsOverNothingWhileItIsPaused) {
  Writer writer;
  Mailbox mailbox(writer);
  mailbox.inbox.Pause(true);
  EXPECT_THAT(mailbox.After(MessageOf(kShort, 1, "a") + DataMessage(2, "data") + MessageOf(kShort, 2, "b")).value(),
              testing::IsEmpty());
  EXPECT_EQ(writer.data_[2], "");
  mailbox.inbox.Pause(false);
  EXPECT_THAT(mailbox.After("").value(), ElementsAre("50 1 a", "50 2 b"));
  EXPECT_EQ(writer.data_[2], "data");
}

}  // namespace
}  // namespace tdock::net
