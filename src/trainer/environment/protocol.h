// What this program and environment programs say to each other: lines of JSON, of at most 16 MiB. docs/environments.md
// describes version 1 for those who write environments.
//
//   host     {"type":"hello","protocol":1,"columns":["extra_info"],"model":"/path/of/the/model"}
//   program  {"type":"hello","protocol":1,"name":"calculator","kind":"environment","tools":[…],"episodes":8,
//             "concludes":false}
//   host     {"type":"reset","episode":7,"seed":123,"row":{"prompt":"…","messages":[…],"prompt_ids":[…],…}}
//   program  {"type":"observation","episode":7,"messages":[{"role":"user","content":"…"}],"rewards":{"correct":0.0},
//             "done":false,"truncated":false,"continues":false}      or "error":"…" in place of all but the episode
//   host     {"type":"step","episode":7,"message":{"role":"assistant","content":"…","tool_calls":[…]}}
//   host     {"type":"conclude","episode":7}        in place of a step, where the hello has "concludes":true: the model
//            says no more, and one more observation with its rewards is due
//   host     {"type":"end","episode":7}
//
// and with "kind":"agent"
//
//   host {"type":"run","episode":7,"seed":123,"sampling":{"temperature":1.0,"top_p":1.0,"max_tokens":256},"row":{…}}
//   program  {"type":"generate","episode":7,"request":0,"prompt_ids":[…],"max_tokens":64}
//   host     {"type":"generated","episode":7,"request":0,"token_ids":[…],"log_probs":[…],"stop_reason":"end_token",
//             "weights_version":3}                                   or "error":"…" in place of the tokens
//   program  {"type":"output","episode":7,"prompt_ids":[…],"response_ids":[…],"response_mask":[…],"rewards":{…}}
//
// and with "kind":"client", which asks the endpoint of its episode
//
//   host     {"type":"run",…,"base_url":"http://127.0.0.1:34567/episode/KEY/v1","api_key":"KEY","model":"small"}
//   program  {"type":"observation","episode":7,"rewards":{…},"done":true}
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/environment/environment.h"
#include "trainer/environment/environment_config.h"

namespace tdock::environment {

inline constexpr int kProtocolVersion = 1;
inline constexpr int64_t kMostEpisodes = 4096;  // that a process may play at the same time
inline constexpr size_t kMostTokens = 1 << 20;  // in a list of a message
inline constexpr size_t kMostMessages = 1000;   // of an observation
inline constexpr size_t kMostRewards = 100;     // of an observation
inline constexpr size_t kMostRewardName = 100;  // bytes

// Lines without their ends, which are also the bodies of HTTP requests. Invalid UTF-8 is replaced.
std::string HelloLine(const EnvironmentSetup& setup);
std::string ResetLine(EpisodeId episode, uint64_t seed, const EpisodeRow& row);
// `endpoint`: of an agent of a URL; else null.
std::string RunLine(EpisodeId episode, uint64_t seed, const EpisodeRow& row, const EnvironmentSetup& setup,
                    const Endpoint* endpoint = nullptr);
std::string StepLine(EpisodeId episode, const text::Turn& message);
std::string GeneratedLine(EpisodeId episode, int64_t request, const absl::StatusOr<Generated>& generated);
std::string ConcludeLine(EpisodeId episode);
std::string EndLine(EpisodeId episode);

// What a program says it is.
struct Hello {
  Environment::Description what;
  int64_t episodes = 1;  // that it plays at the same time
};
// InvalidArgument, saying what is wrong with a program's first line.
absl::StatusOr<Hello> ParseHello(absl::string_view line);

// A later line. InvalidArgument, saying what is wrong with it: no JSON, no such message, numbers that are not finite,
// lists that do not fit each other. The event has an error if the program says that the episode has one.
absl::StatusOr<Event> ParseEvent(absl::string_view line, bool is_agent);

// InvalidArgument for an event of an agent of a URL that does not end its episode.
absl::Status CheckEndsEpisode(const Event& event);

}  // namespace tdock::environment
