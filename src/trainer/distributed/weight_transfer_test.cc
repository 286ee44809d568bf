#include "trainer/distributed/weight_transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "model/decoder/testing/models.h"
#include "tdock/batch.h"
#include "tdock/column.h"
#include "tdock/local_dock.h"

namespace tdock::trainer {
namespace {

using model::Architecture;
using model::Decoder;

absl::Time Late() { return absl::Now() + kPatience; }

Decoder Tiny(uint64_t seed, bool tied_head = false) {
  Decoder decoder = model::TinyDecoder(model::TinyConfig(Architecture::kLlama, tied_head), seed, at::kCPU);
  decoder.SetTrainable(true);
  return decoder;
}

// The base of seed 1 with adapters of their own.
Decoder Adapted(uint64_t seed) {
  Decoder decoder = Tiny(1);
  EXPECT_TRUE(decoder.AddAdapters({.rank = 2}, seed).ok());
  at::NoGradGuard no_grad;
  for (const auto& [name, factor] : decoder.NamedAdapters()) factor.normal_();
  decoder.SetTrainable(true);
  return decoder;
}

bool EqualBits(const std::vector<at::Tensor>& some, const std::vector<at::Tensor>& others) {
  return std::equal(some.begin(), some.end(), others.begin(), others.end(),
                    [](const at::Tensor& a, const at::Tensor& b) {
                      return a.sizes() == b.sizes() && std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0;
                    });
}

// A sender and receivers "a", "b" and so on, and few pieces under way.
class WeightTransfer : public testing::Test {
 protected:
  static WeightTransferOptions Options() { return {.piece_bytes = 256, .most_pieces = 3}; }

  void Open(std::vector<std::string> receivers) {
    sender_ = std::make_unique<WeightSender>(*dock_, std::move(receivers), Options());
    const absl::Status opened = sender_->Open();
    ASSERT_TRUE(opened.ok()) << opened;
  }
  absl::StatusOr<WeightsSent> Receive(const std::string& name, Decoder& into, int64_t version, Dock* from = nullptr) {
    return WeightReceiver(from == nullptr ? *dock_ : *from, name, Options()).Receive(into, version, Late());
  }
  // Sends while one receiver receives, and returns what it made of it.
  absl::StatusOr<WeightsSent> Pass(const Decoder& from, int64_t sent, Decoder& into, int64_t wanted) {
    absl::StatusOr<WeightsSent> received;
    std::atomic<bool> failed = false;
    std::thread receiver([&] {
      received = Receive("a", into, wanted);
      failed = !received.ok();
    });
    sent_ = sender_->Send(from, sent, Late(), [&]() -> absl::Status {
      return failed ? absl::AbortedError("the receiver has failed") : absl::OkStatus();
    });
    receiver.join();
    return received;
  }

  std::unique_ptr<Dock> dock_ = MakeLocalDock();
  std::unique_ptr<WeightSender> sender_;
  absl::StatusOr<WeightsSent> sent_;
};

TEST_F(WeightTransfer, AllReceiversGetTheSameBits) {
  Open({"a", "b"});
  const Decoder trained = Tiny(1);
  Decoder at_a = Tiny(2), at_b = Tiny(3);
  for (int64_t version = 1; version <= 2; ++version) {
    absl::StatusOr<WeightsSent> a, b;
    std::thread first([&] { a = Receive("a", at_a, version); }), second([&] { b = Receive("b", at_b, version); });
    const auto sent = sender_->Send(trained, version, Late());
    first.join();
    second.join();
    ASSERT_TRUE(sent.ok() && a.ok() && b.ok()) << sent.status() << a.status() << b.status();
    EXPECT_GT(sent->bytes, 10 * 256);  // in many pieces
    EXPECT_EQ(a->bytes, sent->bytes);
    EXPECT_EQ(a->checksum, sent->checksum);
    EXPECT_EQ(b->checksum, sent->checksum);
    EXPECT_TRUE(EqualBits(at_a.parameters(), trained.parameters()));
    EXPECT_TRUE(EqualBits(at_b.parameters(), trained.parameters()));
    at_a = Tiny(4);  // the second version is written whole, too
  }
  EXPECT_EQ(dock_->GetStatus(Options().partition)->rows, 0) << "what all have is gone";
}

TEST_F(WeightTransfer, OfAdaptersOnlyTheseTravel) {
  Open({"a"});
  const Decoder trained = Adapted(5);
  Decoder into = Adapted(6);
  for (const at::Tensor& weight : into.parameters()) {
    if (!weight.requires_grad()) weight.zero_();
  }
  ASSERT_FALSE(EqualBits(into.trainable(), trained.trainable()));
  const auto received = Pass(trained, 1, into, 1);
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_TRUE(EqualBits(into.trainable(), trained.trainable()));
  int64_t bytes = 0;
  for (const at::Tensor& factor : trained.trainable()) bytes += static_cast<int64_t>(factor.nbytes());
  EXPECT_EQ(received->bytes, bytes);
  for (const at::Tensor& weight : into.parameters()) {
    EXPECT_TRUE(weight.requires_grad() || weight.abs().sum().item<double>() == 0) << "the base stays as it was";
  }
}

TEST_F(WeightTransfer, AnotherVersionIsRefusedAndEndsTheSender) {
  Open({"a"});
  Decoder into = Tiny(2);
  const auto received = Pass(Tiny(1), 7, into, 8);
  EXPECT_THAT(received.status(), Fails(absl::StatusCode::kInvalidArgument, {"version 7", "version 8"}));
  // It waits for room that nobody makes, and is asked meanwhile.
  EXPECT_EQ(sent_.status(), absl::AbortedError("the receiver has failed"));
  // Nothing is left that would be taken for the next version.
  const auto next = Pass(Tiny(1), 9, into, 9);
  EXPECT_TRUE(next.ok()) << next.status();
}

TEST_F(WeightTransfer, AModelOfAnotherShapeIsRefused) {
  Open({"a"});
  Decoder into = Tiny(2, /*tied_head=*/true);
  const auto received = Pass(Tiny(1), 1, into, 1);
  EXPECT_THAT(received.status(), Fails(absl::StatusCode::kInvalidArgument, {"piece 0 of version 1"}));
  EXPECT_FALSE(sent_.ok());
}

TEST_F(WeightTransfer, ADamagedPieceIsDataLoss) {
  Open({"a"});
  const std::unique_ptr<Dock> damaged = MakeLocalDock();
  WeightSender shape(*damaged, {"a"}, Options());
  ASSERT_TRUE(shape.Open().ok());
  // Takes the pieces to the other dock, with one bit of the third changed.
  std::thread way([&] {
    for (int64_t number = 0, more = 1; more > 0; ++number) {
      const auto taken =
          dock_->Take({.partition = Options().partition, .consumer = "a", .min = 1, .max = 1, .deadline = Late()});
      TDOCK_CHECK(taken.ok(), taken.status().ToString());
      std::string bytes(*taken->rows.Text(0, "bytes"));
      more = std::ssize(bytes);
      if (number == 2) bytes[100] = static_cast<char>(bytes[100] ^ 1);
      Batch batch;
      TDOCK_CHECK(batch.Add("place", *taken->rows.ToColumn("place")).ok(), "");
      TDOCK_CHECK(batch.Add("bytes", Column::FromStrings(std::vector<std::string>{bytes})).ok(), "");
      const auto put = damaged->Put({.partition = Options().partition, .batch = batch, .deadline = Late()});
      TDOCK_CHECK(put.ok(), put.status().ToString());
    }
  });
  absl::StatusOr<WeightsSent> received;
  Decoder into = Tiny(2);
  std::thread receiver([&] { received = Receive("a", into, 1, damaged.get()); });
  const auto sent = sender_->Send(Tiny(1), 1, Late());
  way.join();
  receiver.join();
  ASSERT_TRUE(sent.ok()) << sent.status();
  EXPECT_THAT(received.status(), Fails(absl::StatusCode::kDataLoss, {"checksum"}));
}

TEST_F(WeightTransfer, WithoutReceiversTheSenderEndsAtItsDeadline) {
  Open({"a"});
  const auto sent = sender_->Send(Tiny(1), 1, absl::Now() + absl::Milliseconds(20));
  EXPECT_THAT(sent.status(), Fails(absl::StatusCode::kDeadlineExceeded, {"version 1"}));
}

}  // namespace
}  // namespace tdock::trainer
