// Many clients of a server that speaks OpenAI's completions, and what each waits for.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/json_text.h"

namespace tdock::bench {

// Streams that are asked for at once, each on a connection of its own.
struct StreamLoad {
  int port = 0;  // of this machine
  int streams = 64;
  int64_t prompt = 128, new_tokens = 128;  // of each
  int32_t vocabulary = 8192;               // prompts are random tokens below
  uint64_t seed = 1;                       // of the prompts, which are all different
  std::string path = "/v1/completions";
  nlohmann::json fields = nlohmann::json::object();  // of the requests, beside prompt, max_tokens and stream
  // Not null: is posted to update_path when each stream has got update_after tokens since all have begun.
  std::string update_path = "/update_weights";
  nlohmann::json update = nullptr;
  int64_t update_after = 16;
};

// Times in milliseconds. A token is there when its event has been read.
struct StreamFigures {
  double tokens_per_s = 0;  // new ones, from the first request until the last stream has ended
  double first_p50 = 0, first_p99 = 0, next_p50 = 0, next_p99 = 0;  // from a request or a token to the next token
  // With an update. Of gaps between two tokens of a stream when all streams have begun: the median and the longest
  // until it was posted, and the longest from then on; and the time until the server said that it is done.
  double step = 0, longest_before = 0, longest_after = 0, update = 0;
  double left = 0;    // from then until the first stream ended
  double events = 0;  // with tokens, for each token; 1 unless a server puts several into one
};

// One thread reads all streams. Internal where a stream has another length or the server refuses; DeadlineExceeded
// after ten minutes.
absl::StatusOr<StreamFigures> RunStreams(const StreamLoad& load);

nlohmann::json JsonOf(const StreamFigures& figures);
absl::StatusOr<StreamFigures> FiguresOf(const std::string& line);

// The same in a process of its own, `tdock-bench --worker streams LOAD`, with the load as JSON, whose fields are those
// of StreamLoad: the server and the client then use the same processors in the same way, whatever the server is.
absl::StatusOr<StreamFigures> RunStreamsApart(const StreamLoad& load);
// What that process does: prints the figures.
absl::Status RunStreamWorker(const std::string& load);

}  // namespace tdock::bench
