#include "core/rpc/outgoing.h"

#include <gtest/gtest.h>

#include <string>

namespace tdock::rpc {
namespace {

using Step = Outgoing::Step;

grpc::ByteBuffer GrpcBytes(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

std::string TextOf(const grpc::ByteBuffer& bytes) {
  grpc::Slice slice;
  EXPECT_TRUE(bytes.DumpToSingleSlice(&slice).ok());
  return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

TEST(Outgoing, GivesOneMessageAfterTheOtherAndTheEndWithTheLast) {
  Outgoing out;
  grpc::ByteBuffer message;
  EXPECT_EQ(out.Next(&message), Step::kNone);
  EXPECT_TRUE(out.Push(GrpcBytes("one"), 3));
  EXPECT_TRUE(out.Push(GrpcBytes("two"), 3));
  EXPECT_EQ(out.queued_bytes(), 6);
  EXPECT_EQ(out.Next(&message), Step::kWrite);
  EXPECT_EQ(TextOf(message), "one");
  EXPECT_EQ(out.Next(&message), Step::kNone) << "a step is under way";
  EXPECT_TRUE(out.End());
  EXPECT_FALSE(out.End());
  EXPECT_FALSE(out.Push(GrpcBytes("three"), 5));
  out.Done(true);
  EXPECT_EQ(out.queued_bytes(), 3);
  EXPECT_EQ(out.Next(&message), Step::kWriteLast);
  EXPECT_EQ(TextOf(message), "two");
  EXPECT_TRUE(out.over());
  out.Abandon();
  out.Done(true);
  EXPECT_EQ(out.Next(&message), Step::kNone) << "the last step was given";
}

TEST(Outgoing, GivesTheEndAloneWhereNothingWaits) {
  Outgoing out;
  grpc::ByteBuffer message;
  out.End();
  EXPECT_FALSE(out.over());
  EXPECT_EQ(out.Next(&message), Step::kEnd);
  EXPECT_TRUE(out.over());
  out.Done(true);
  EXPECT_EQ(out.Next(&message), Step::kNone);
}

TEST(Outgoing, AFailedStepDropsWhatWaits) {
  Outgoing out;
  grpc::ByteBuffer message;
  out.Push(GrpcBytes("one"), 3);
  out.Push(GrpcBytes("two"), 3);
  EXPECT_EQ(out.Next(&message), Step::kWrite);
  out.Done(false);
  EXPECT_EQ(out.queued_bytes(), 0);
  EXPECT_FALSE(out.Push(GrpcBytes("three"), 5));
  EXPECT_TRUE(out.over());
  EXPECT_EQ(out.Next(&message), Step::kNone);
}

TEST(Outgoing, GivesNoMessageWhileCorked) {
  Outgoing out;
  grpc::ByteBuffer message;
  out.Cork();
  out.Push(GrpcBytes("one"), 3);
  EXPECT_EQ(out.Next(&message), Step::kNone);
  out.End();
  out.Uncork();
  EXPECT_EQ(out.Next(&message), Step::kWriteLast);
}

}  // namespace
}  // namespace tdock::rpc
