#include "trainer/rollout_servers/wire/weight_calls.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "trainer/rollout_servers/wire/reply_json.h"

namespace tdock::trainer {
namespace {

constexpr char kGroup[] = "weight_update_group";
constexpr char kSglangFolderPath[] = "/update_weights_from_disk";
constexpr int64_t kMaxRanks = 65536;
constexpr size_t kMaxVersionBytes = 40;
constexpr char kNothing[] = "{}";

WireCall Get(std::string target) { return {.method = "GET", .target = std::move(target)}; }
bool IsVllm(ServerKind kind) { return kind == ServerKind::kVllm; }

bool IsDigest(const std::string& text) {
  return text.size() >= 16 && text.size() <= 128 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Adds {name: digest}; what stands before the last colon of a name is the place of its rank.
absl::Status AddDigests(const nlohmann::json& checksums, Digests& digests) {
  if (!checksums.is_object()) return absl::InvalidArgumentError("its digests of weights have no \"checksums\"");
  for (const auto& [key, value] : checksums.items()) {
    if (!value.is_string() || !IsDigest(value.get_ref<const std::string&>())) {
      return absl::InvalidArgumentError(
          absl::StrCat("its digest of the weight ", Quoted(key), " is no hexadecimal text of 16 to 128 digits"));
    }
    digests[key.substr(key.rfind(':') + 1)].push_back(value.get<std::string>());
  }
  return absl::OkStatus();
}

}  // namespace

std::string WireCall::shown() const { return absl::StrCat(method, " ", target); }

WireCall HaltCall(ServerKind kind) {
  if (IsVllm(kind)) return {.target = "/pause?mode=keep"};
  return {.target = "/pause_generation", .body = R"({"mode":"in_place"})"};
}

WireCall GoOnCall(ServerKind kind) {
  if (IsVllm(kind)) return {.target = "/resume"};
  return {.target = "/continue_generation", .body = kNothing};
}

WireCall LabelCall(ServerKind kind) { return Get(IsVllm(kind) ? "/weight_info" : "/model_info"); }

WireCall DigestsCall(ServerKind kind) {
  return {.target = IsVllm(kind) ? "/weight_checker" : "/weights_checker", .body = R"({"action":"checksum"})"};
}

bool HasOwnFolderCall(ServerKind kind, absl::string_view path) {
  if (IsVllm(kind)) return path == kUsualFolderPath || path == "/collective_rpc";
  return kind == ServerKind::kSglang && (path == kUsualFolderPath || path == kSglangFolderPath);
}

WireCall FolderCall(ServerKind kind, absl::string_view path, const std::string& folder, int64_t version,
                    bool flush_cache) {
  const std::string name = JsonText(nlohmann::json(folder));
  const bool is_own = HasOwnFolderCall(kind, path);
  if (is_own && IsVllm(kind)) {
    return {.target = "/collective_rpc",
            .body = absl::StrCat(R"({"method":"reload_weights","kwargs":{"weights_path":)", name, "}}")};
  }
  // SGLang wants the version as a text, and `tdock serve` takes one.
  return {.target = std::string(is_own ? kSglangFolderPath : path),
          .body = absl::StrCat("{\"model_path\":", name, ",\"weight_version\":\"", version,
                               "\",\"flush_cache\":", flush_cache ? "true" : "false", "}")};
}

WireCall RelabelCall(int64_t version) {
  return {.target = "/update_weight_version", .body = absl::StrCat("{\"new_version\":\"", version, "\"}")};
}

std::vector<WireCall> FolderProbes(ServerKind kind) {
  return {LabelCall(kind), {.target = IsVllm(kind) ? "/collective_rpc" : kSglangFolderPath, .body = kNothing}};
}

bool IsMissing(int code) { return code == 401 || code == 403 || code == 404 || code == 405 || code == 501; }

absl::StatusOr<std::optional<int64_t>> ReadLabel(absl::string_view body) {
  TDOCK_ASSIGN_OR_RETURN(const nlohmann::json json, ParseReply(body));
  const nlohmann::json& label = At(json, "weight_version");
  if (label.is_null()) return absl::InvalidArgumentError("it does not say the \"weight_version\" of its weights");
  return Whole(label);
}

absl::StatusOr<std::string> ReadProgramVersion(absl::string_view body) {
  TDOCK_ASSIGN_OR_RETURN(const nlohmann::json json, ParseReply(body));
  std::string version = TextAt(json, "version").substr(0, kMaxVersionBytes);
  if (!version.empty() && std::all_of(version.begin(), version.end(), absl::ascii_isgraph)) return version;
  return absl::InvalidArgumentError("it does not say its \"version\"");
}

absl::StatusOr<Digests> ReadDigests(absl::string_view body) {
  TDOCK_ASSIGN_OR_RETURN(const nlohmann::json json, ParseReply(body));
  Digests digests;
  if (const nlohmann::json& ranks = At(json, "ranks"); ranks.is_array()) {
    for (const nlohmann::json& rank : ranks) {
      TDOCK_RETURN_IF_ERROR(AddDigests(At(rank, "checksums"), digests));
    }
  } else {
    TDOCK_RETURN_IF_ERROR(AddDigests(At(json, "checksums"), digests));
  }
  return digests;
}

WireCall RanksCall(ServerKind kind) { return Get(IsVllm(kind) ? "/get_world_size" : "/server_info"); }

absl::StatusOr<int64_t> ReadRanks(absl::string_view body) {
  TDOCK_ASSIGN_OR_RETURN(const nlohmann::json json, ParseReply(body));
  const nlohmann::json& world = At(json, "world_size");
  const std::optional<int64_t> ranks = Whole(world.is_null() ? At(json, "tp_size") : world);
  if (ranks && *ranks >= 1 && *ranks <= kMaxRanks) return *ranks;
  return absl::InvalidArgumentError(
      absl::StrCat("it does not say how many ranks it has, 1 to ", kMaxRanks, ", as \"world_size\" or \"tp_size\""));
}

WireCall JoinCall(ServerKind kind, const GroupPlace& place) {
  const std::string ranks = absl::StrCat(R"("rank_offset":1,"world_size":)", place.servers + 1);
  if (IsVllm(kind)) {
    return {.target = "/init_weight_transfer_engine",
            .body = absl::StrCat("{\"init_info\":{", ranks, R"(,"packed":false,"nccl_unique_id_b64":")",
                                 absl::Base64Escape(place.unique_id), "\"}}")};
  }
  return {
      .target = "/init_weights_update_group",
      .body = absl::StrCat("{", ranks, ",\"master_address\":", JsonText(nlohmann::json(place.address)),
                           ",\"master_port\":", place.port, ",\"group_name\":\"", kGroup, R"(","backend":"nccl"})")};
}

WireCall LeaveCall(ServerKind kind) {
  if (IsVllm(kind)) return {.target = "/shutdown_weight_transfer_engine"};
  return {.target = "/destroy_weights_update_group", .body = absl::StrCat("{\"group_name\":\"", kGroup, "\"}")};
}

WireCall BeginCall(ServerKind kind) {
  if (IsVllm(kind)) return {.target = "/start_weight_update"};
  return {.target = "/begin_weight_update", .body = kNothing};
}

WireCall ReceiveCall(ServerKind kind, const GroupWeights& weights, int64_t version, bool flush_cache) {
  nlohmann::json info;
  info["names"] = weights.names;
  info["shapes"] = weights.shapes;
  info[IsVllm(kind) ? "dtype_names" : "dtypes"] = weights.dtypes;
  if (IsVllm(kind)) {
    return {.target = "/update_weights", .body = absl::StrCat("{\"update_info\":", JsonText(info), "}")};
  }
  info["group_name"] = kGroup;
  info["flush_cache"] = flush_cache;
  info["weight_version"] = absl::StrCat(version);
  return {.target = "/update_weights_from_distributed", .body = JsonText(info)};
}

WireCall EndCall(ServerKind kind, int64_t version) {
  if (!IsVllm(kind)) return {.target = "/end_weight_update", .body = kNothing};
  return {.target = "/finish_weight_update", .body = absl::StrCat("{\"weight_version\":\"", version, "\"}")};
}

}  // namespace tdock::trainer
