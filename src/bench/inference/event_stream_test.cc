#include "bench/inference/event_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tdock::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::string_view kChunked =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    "9\r\ndata: one\r\n"
    "F\r\n\n\ndata: two\n\nda\r\n"
    "c\r\nta: [DONE]\n\n\r\n"
    "0\r\n\r\n";

// The events of an answer that arrives in pieces of so many bytes.
std::vector<std::string> EventsOf(absl::string_view answer, size_t piece, EventStream& stream) {
  std::vector<std::string> events;
  for (size_t at = 0; at < answer.size(); at += piece) {
    EXPECT_FALSE(stream.ended()) << "before byte " << at;
    const absl::Status read =
        stream.Read(answer.substr(at, piece), [&](absl::string_view data) { events.emplace_back(data); });
    EXPECT_TRUE(read.ok()) << read;
  }
  return events;
}

TEST(EventStream, GivesTheSameEventsHoweverTheBytesArrive) {
  for (size_t piece = 1; piece <= kChunked.size(); ++piece) {
    EventStream stream;
    EXPECT_THAT(EventsOf(kChunked, piece, stream), ElementsAre("one", "two", "[DONE]")) << piece;
    EXPECT_TRUE(stream.ended()) << piece;
  }
}

TEST(EventStream, AnAnswerWithALengthIsOneEvent) {
  const absl::string_view answer = "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{\"a\":1}";
  for (size_t piece = 1; piece <= answer.size(); ++piece) {
    EventStream stream;
    EXPECT_THAT(EventsOf(answer, piece, stream), ElementsAre("{\"a\":1}")) << piece;
    EXPECT_TRUE(stream.ended()) << piece;
  }
}

TEST(EventStream, SaysWhyTheServerRefuses) {
  EventStream stream;
  const absl::Status read =
      stream.Read("HTTP/1.1 429 Enough\r\nContent-Length: 4\r\n\r\nbusy", [](absl::string_view) {});
  EXPECT_EQ(read.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(read.message()), HasSubstr("busy"));
}

TEST(EventStream, RefusesWhatIsNoAnswerOfAKnownLength) {
  for (const absl::string_view answer : {"HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"}) {
    EventStream stream;
    EXPECT_FALSE(stream.Read(answer, [](absl::string_view) {}).ok()) << answer;
  }
  EventStream stream;
  const absl::string_view head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_FALSE(stream.Read(std::string(head) + "zz\r\n", [](absl::string_view) {}).ok());
}

}  // namespace
}  // namespace tdock::bench
