// Requests that make servers of other programs take weights, and what those servers say of the weights they have.
//
//               vLLM 0.32                              SGLang 0.5.23
//   halt        /pause?mode=keep                       /pause_generation
//   a folder    /collective_rpc (reload_weights),      /update_weights_from_disk
//               /update_weight_version
//   a group     /init_weight_transfer_engine           /init_weights_update_group
//   its weights /start_weight_update,                  /begin_weight_update,
//               /update_weights,                       /update_weights_from_distributed,
//               /finish_weight_update                  /end_weight_update
//   go on       /resume                                /continue_generation
//   the label   /weight_info                           /model_info
//   digests     /weight_checker                        /weights_checker
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/rollout_servers/wire/wire.h"

namespace tdock::trainer {

struct WireCall {
  std::string method = "POST", target = {}, body = {};

  // "POST /resume".
  std::string shown() const;
};

// The calls below are for vLLM and SGLang alone.

// Freezes answers in progress, which keep what they have read.
WireCall HaltCall(ServerKind kind);
// Ends that. Does nothing to a server that is not halted.
WireCall GoOnCall(ServerKind kind);
// Asks for the label of the weights, "weight_version".
WireCall LabelCall(ServerKind kind);
// Asks for a digest of each weight.
WireCall DigestsCall(ServerKind kind);
// The default of rollout.server_weights_path. At it, a vLLM and an SGLang are told of folders by calls of their own.
inline constexpr char kUsualFolderPath[] = "/update_weights";
// True if a server of this kind is told of folders by a call of its own where the configuration names `path`.
bool HasOwnFolderCall(ServerKind kind, absl::string_view path);
// Makes a server of any kind read a folder. All but vLLM label the weights and, with `flush_cache`, forget what they
// have read.
WireCall FolderCall(ServerKind kind, absl::string_view path, const std::string& folder, int64_t version,
                    bool flush_cache);
// Labels the weights of a vLLM.
WireCall RelabelCall(int64_t version);

// Calls with an empty body that change nothing: the answer says whether the server has what FolderCall() asks for.
std::vector<WireCall> FolderProbes(ServerKind kind);
// True for a code that says that there is no such call, or not for this client: 401, 403, 404, 405, 501.
bool IsMissing(int code);

// The label as a number, or nothing for another text, such as vLLM's "default".
absl::StatusOr<std::optional<int64_t>> ReadLabel(absl::string_view body);
// The "version" of the program; at most 40 printable characters of it.
absl::StatusOr<std::string> ReadProgramVersion(absl::string_view body);

// Digests in lower-case hex by the weight's name, one of each rank that has it. SHA-256 of its bytes, or the first 16
// digits of it (SGLang without a GPU), or another hash of 16 digits.
using Digests = std::map<std::string, std::vector<std::string>>;
absl::StatusOr<Digests> ReadDigests(absl::string_view body);

// A group that this program broadcasts to as rank 0. A vLLM comes by the 128 bytes of an ncclUniqueId, an SGLang by the
// address of a c10d TCPStore.
struct GroupPlace {
  int64_t servers = 1;         // ranks of the server, which follow rank 0
  std::string unique_id = {};  // vLLM
  std::string address = {};    // SGLang
  int port = 0;
};

// The weights of one update, in the order of the broadcasts. Dtypes as PyTorch's: "bfloat16".
struct GroupWeights {
  std::vector<std::string> names = {}, dtypes = {};
  std::vector<std::vector<int64_t>> shapes = {};
};

// Asks how many ranks a server has, and reads it; at most 65536.
WireCall RanksCall(ServerKind kind);
absl::StatusOr<int64_t> ReadRanks(absl::string_view body);
// Joins the group: answered once all have joined.
WireCall JoinCall(ServerKind kind, const GroupPlace& place);
// Leaves the group that it is in; an error if it is in none.
WireCall LeaveCall(ServerKind kind);
// Begins an update, receives weights (answered once all have been received), and ends it.
WireCall BeginCall(ServerKind kind);
WireCall ReceiveCall(ServerKind kind, const GroupWeights& weights, int64_t version, bool flush_cache);
WireCall EndCall(ServerKind kind, int64_t version);

}  // namespace tdock::trainer
