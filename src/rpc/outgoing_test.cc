#include "rpc/outgoing.h"

#include <gtest/gtest.h>

#include <string>

namespace tdock::rpc {
namespace {

using Step = Outgoing::Step;

grpc::ByteBuffer Bytes(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

std::string Text(const grpc::ByteBuffer& bytes) {
  grpc::Slice slice;
  EXPECT_TRUE(bytes.DumpToSingleSlice(&slice).ok());
  return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

TEST(Outgoing, GivesOneMessageAfterTheOtherAndTheEndWithTheLast) {
  Outgoing out(/*end_closes=*/true);
  grpc::ByteBuffer message;
  EXPECT_EQ(out.Next(&message), Step::kNone);
  EXPECT_TRUE(out.Push(Bytes("one"), 3));
  EXPECT_TRUE(out.Push(Bytes("two"), 3));
  EXPECT_EQ(out.queued_bytes(), 6);
  EXPECT_EQ(out.Next(&message), Step::kWrite);
  EXPECT_EQ(Text(message), "one");
  EXPECT_EQ(out.Next(&message), Step::kNone) << "a step is under way";
  EXPECT_TRUE(out.End());
  EXPECT_FALSE(out.End());
  EXPECT_FALSE(out.Push(Bytes("three"), 5));
  out.Done(true);
  EXPECT_EQ(out.queued_bytes(), 3);
  EXPECT_EQ(out.Next(&message), Step::kWriteLast);
  EXPECT_EQ(Text(message), "two");
  EXPECT_TRUE(out.over());
  out.Abandon();
  out.Done(true);
  EXPECT_EQ(out.Next(&message), Step::kNone) << "the closing step was given";
}

TEST(Outgoing, OnAClientOnlyAbandoningClosesAndComesAfterTheEnd) {
  Outgoing out(/*end_closes=*/false);
  grpc::ByteBuffer message;
  out.End();
  EXPECT_EQ(out.Next(&message), Step::kEnd);
  out.Abandon();
  EXPECT_EQ(out.Next(&message), Step::kNone) << "the end is under way";
  out.Done(true);
  EXPECT_EQ(out.Next(&message), Step::kAbandon);
  EXPECT_EQ(out.Next(&message), Step::kNone);
}

TEST(Outgoing, AFailedStepDropsWhatWaits) {
  Outgoing out(/*end_closes=*/true);
  grpc::ByteBuffer message;
  out.Push(Bytes("one"), 3);
  out.Push(Bytes("two"), 3);
  EXPECT_EQ(out.Next(&message), Step::kWrite);
  out.Done(false);
  EXPECT_EQ(out.queued_bytes(), 0);
  EXPECT_FALSE(out.Push(Bytes("three"), 5));
  EXPECT_EQ(out.Next(&message), Step::kAbandon);
}

TEST(Outgoing, GivesNoMessageWhileCorkedAndNoClosingStepWhilePinned) {
  Outgoing out(/*end_closes=*/true);
  grpc::ByteBuffer message;
  out.Cork();
  out.Push(Bytes("one"), 3);
  EXPECT_EQ(out.Next(&message), Step::kNone);
  out.End();
  EXPECT_TRUE(out.Pin());
  out.Uncork();
  EXPECT_EQ(out.Next(&message), Step::kNone);
  out.Unpin();
  EXPECT_EQ(out.Next(&message), Step::kWriteLast);
  EXPECT_FALSE(out.Pin());

  Outgoing abandoned(/*end_closes=*/true);
  abandoned.Pin();
  abandoned.Abandon();
  EXPECT_EQ(abandoned.Next(&message), Step::kNone);
  abandoned.Unpin();
  EXPECT_EQ(abandoned.Next(&message), Step::kAbandon);
}

}  // namespace
}  // namespace tdock::rpc
