#include "inference/client/event_stream.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tdock::inference {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The events of a stream that arrives in pieces of so many bytes.
std::vector<std::string> EventsOf(absl::string_view stream, size_t piece) {
  std::vector<std::string> events;
  EventStream reader([&](absl::string_view data) {
    events.emplace_back(data);
    return data != "[DONE]";
  });
  for (; !stream.empty(); stream.remove_prefix(std::min(piece, stream.size()))) {
    if (!reader.Push(stream.substr(0, piece))) break;
  }
  return events;
}

TEST(EventStream, IsTheSameInPiecesOfAnySize) {
  constexpr char kStream[] =
      ": hello\n\ndata: {\"a\":1}\n\ndata:two\ndata: lines\n\nevent: x\nid: 7\ndata\n\ndata: [DONE]\n\n";
  for (const size_t piece : {1, 2, 3, 7, 1000}) {
    EXPECT_THAT(EventsOf(kStream, piece), ElementsAre("{\"a\":1}", "two\nlines", "", "[DONE]")) << piece;
  }
}

TEST(EventStream, TakesAllThreeEndsOfLines) {
  for (const size_t piece : {1, 2, 1000}) {
    EXPECT_THAT(EventsOf("data: a\r\n\r\ndata: b\r\rdata: c\n\n", piece), ElementsAre("a", "b", "c")) << piece;
  }
}

TEST(EventStream, HasNoEventBeforeItsEmptyLine) {
  EXPECT_THAT(EventsOf("data: a\n", 3), IsEmpty());
  EXPECT_THAT(EventsOf("database: a\n\n", 3), IsEmpty());
}

TEST(EventStream, ReadsNothingAfterItWasTold) {
  EXPECT_THAT(EventsOf("data: [DONE]\n\ndata: more\n\n", 1000), ElementsAre("[DONE]"));
}

}  // namespace
}  // namespace tdock::inference
