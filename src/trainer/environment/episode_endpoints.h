// Endpoints of OpenAI's interface, one for each episode of an agent that knows nothing of a run but a URL.
//
//   agent ── POST /episode/KEY/v1/chat/completions ──► Take(): ChatRequest ──► the model
//         ◄── a reply ────────────────────────────────── Answer(): Generated ◄──┘
//
// The server knows HTTP and the JSON of requests, which only such agents need. It is a shared object beside the
// program, built from `inference/episodes/plugin` and loaded when the first of them begins.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "text/chat_template.h"
#include "text/replies/reply_forms.h"
#include "text/tokenizer.h"
#include "trainer/environment/environment.h"
#include "trainer/reward/external/log_lines.h"

namespace tdock::environment {

// How an agent reaches the endpoint of its episode.
struct Endpoint {
  std::string base_url = {};  // "http://127.0.0.1:34567/episode/KEY/v1"
  std::string api_key = {};   // KEY, by which "http://127.0.0.1:34567/v1" is that endpoint, too
  std::string model = {};     // the name of the model; requests may have any
};

// The model behind endpoints. What it points to must outlive them.
struct EndpointOptions {
  std::string model = {};
  const text::Tokenizer* tokenizer = nullptr;
  const text::ChatTemplate* chat_template = nullptr;  // null: turns are written as they are
  std::optional<text::ReplyForm> reply_form = {};     // absent: that of the template
  std::vector<int32_t> end_tokens = {};
  double temperature = 1;  // of the run; requests that ask for another are told of in the log, once
  reward::LogSink log = [](const std::string&) {};
};

// Thread-safe.
class EpisodeEndpoints {
 public:
  // Cuts its connections.
  virtual ~EpisodeEndpoints() = default;

  // Nobody else can guess its key.
  virtual Endpoint Open(EpisodeId episode) = 0;
  // The episode is over: what it asks from now on, and what it has asked, gets the status 410.
  virtual void Close(EpisodeId episode) = 0;

  // The requests that have come since the last call, each a ChatRequest.
  virtual std::vector<Event> Take() = 0;
  // Can be read while Take() has something to return, and from Wake() on until Take().
  virtual int descriptor() const = 0;
  virtual void Wake() = 0;
  // Does nothing for a request that has an answer.
  virtual void Answer(EpisodeId episode, int64_t request, const absl::StatusOr<Generated>& generated) = 0;
};

using MakeEndpoints = std::function<absl::StatusOr<std::unique_ptr<EpisodeEndpoints>>()>;

// On a free port of the loopback. NotFound if the shared object does not lie beside the program; the errors of
// http::Server::Start().
absl::StatusOr<std::unique_ptr<EpisodeEndpoints>> OpenEpisodeEndpoints(const EndpointOptions& options);

// The interface of the shared object, under this name.
inline constexpr char kOpenEpisodeEndpoints[] = "tdock_open_episode_endpoints";
using OpenEpisodeEndpointsFunction = void(const EndpointOptions& options,
                                          absl::StatusOr<std::unique_ptr<EpisodeEndpoints>>* opened);

}  // namespace tdock::environment
