// Connections that a loop serves, over pairs of sockets. The other end is this thread.
#include "core/net/connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "core/base/mutex.h"
#include "core/base/testing/patience.h"
#include "core/tensor/checksum.h"

namespace tdock::net {
namespace {

using testing::HasSubstr;

// The messages and data that a connection got. Thread-safe.
class Record {
 public:
  void Add(absl::string_view bytes) {
    const MutexLock lock(mu_);
    data_.append(bytes.data(), bytes.size());
  }
  void Close(const absl::Status& why) {
    const MutexLock lock(mu_);
    why_ = why;
    closed_ = true;
  }
  std::string data() const {
    const MutexLock lock(mu_);
    return data_;
  }
  bool closed() const {
    const MutexLock lock(mu_);
    return closed_;
  }
  absl::Status why() const {
    const MutexLock lock(mu_);
    return why_;
  }

 private:
  mutable Mutex mu_;
  std::string data_ TDOCK_GUARDED_BY(mu_);
  bool closed_ TDOCK_GUARDED_BY(mu_) = false;
  absl::Status why_ TDOCK_GUARDED_BY(mu_);
};

class Recorder final : public Handler {
 public:
  using OnBody = std::function<void(absl::string_view)>;
  explicit Recorder(std::shared_ptr<Record> record, OnBody on_body = nullptr)
      : record_(std::move(record)), on_body_(std::move(on_body)) {}

  uint32_t MaxBytes(uint8_t) const override { return 1 << 20; }
  absl::Status OnMessage(const MessageHeader&, absl::string_view body) override {
    if (on_body_) on_body_(body);
    record_->Add(body);
    return absl::OkStatus();
  }
  absl::Status OnData(uint64_t, uint64_t, std::span<const std::byte> bytes) override {
    record_->Add({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    return absl::OkStatus();
  }
  void OnClosed(const absl::Status& why) override { record_->Close(why); }

 private:
  const std::shared_ptr<Record> record_;
  const OnBody on_body_;
};

class Connections : public testing::Test {
 protected:
  Connections() : loop_(*Loop::Start()) {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    here_ = std::make_unique<FileDescriptor>(pair[0]);
    there_ = std::make_unique<FileDescriptor>(pair[1]);
  }
  ~Connections() override {
    loop_->Run([this] {
      if (connection_ != nullptr) connection_->Abort();
    });
    loop_->Stop();
  }
  void Begin(size_t max_queued_bytes, Recorder::OnBody on_body = nullptr) {
    connection_ =
        std::make_shared<Connection>(loop_, MakePlainStream(std::move(there_), false, false), max_queued_bytes);
    loop_->Run([&] { EXPECT_TRUE(connection_->Start(std::make_unique<Recorder>(record_, std::move(on_body))).ok()); });
  }
  void Say(const std::string& bytes) {
    EXPECT_EQ(send(here_->fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }

  const std::shared_ptr<Loop> loop_;
  const std::shared_ptr<Record> record_ = std::make_shared<Record>();
  std::unique_ptr<FileDescriptor> here_, there_;
  std::shared_ptr<Connection> connection_;
};

TEST_F(Connections, HandOverWhatIsLeftWhenAMessageTookLong) {
  Begin(SIZE_MAX, [](absl::string_view) {
    for (const absl::Time begin = absl::Now(); absl::Now() < begin + absl::Milliseconds(2);) {
    }
  });
  Say(MessageOf(40, 0, "a") + MessageOf(40, 0, "b") + MessageOf(40, 0, "c"));
  EXPECT_TRUE(Eventually([&] { return record_->data() == "abc"; }));
}

TEST_F(Connections, ReadOnOnceLessIsQueued) {
  constexpr size_t kAnswerBytes = 64 << 10;
  // Each answer is more than may be queued, and is sent at once.
  Begin(kAnswerBytes / 2, [&](absl::string_view) { connection_->Send(std::string(kAnswerBytes, 'x')); });
  Say(MessageOf(40, 0, "a"));
  Say(MessageOf(40, 0, "b"));
  std::string room(64 << 10, '\0');
  size_t got = 0;
  bool asked = false;
  EXPECT_TRUE(Eventually([&] {
    const ssize_t some = recv(here_->fd(), room.data(), room.size(), 0);
    if (some > 0) got += static_cast<size_t>(some);
    // Another is asked for when the first have arrived.
    if (got == 2 * kAnswerBytes && !std::exchange(asked, true)) Say(MessageOf(40, 0, "c"));
    return got == 3 * kAnswerBytes;
  }));
  EXPECT_EQ(record_->data(), "abc");
}

TEST_F(Connections, TellNothingOfTheEndOfDamagedData) {
  Begin(SIZE_MAX);
  const auto data = [](absl::string_view bytes, uint64_t checksum) {
    const DataPrefix prefix{.checksum = checksum};
    std::string body(reinterpret_cast<const char*>(&prefix), sizeof(prefix));
    return MessageOf(kData, 7, body.append(bytes.data(), bytes.size()));
  };
  Say(data("right", ChecksumOf(0, AsBytes("right"))) + data("wrong", ChecksumOf(0, AsBytes("Wrong"))));
  EXPECT_TRUE(Eventually([&] { return record_->closed(); }));
  EXPECT_EQ(record_->data(), "right");
  EXPECT_TRUE(absl::IsUnavailable(record_->why())) << record_->why();
  EXPECT_THAT(std::string(record_->why().message()), HasSubstr("call 7"));
}

}  // namespace
}  // namespace tdock::net
