// How the arguments of a call are divided over the workers of a group, and their results are put together.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/dispatch/value.h"
#include "runtime/mesh/mesh.h"

namespace tdock::runtime {

// The names are verl's: ONE_TO_ALL is kOneToAll.
enum class Mode : uint8_t {  // kModeRules says what each does
  kOneToAll,
  kAllToAll,
  kDpCompute,
  kDpComputeProto,
  kDpComputeProtoWithFunc,
  kDpComputeMetric,
  kNdMesh,
  kMegatronCompute,
  kMegatronComputeProto,
  kMegatronPpAsDp,
  kMegatronPpAsDpProto,
  kMegatronPpOnly,
  kUser,
};

// What becomes of one argument.
enum class ArgumentRule : uint8_t {
  kReplicated,  // every rank gets it
  kSpread,      // a list with an element for each chunk is divided; anything else is replicated
  kElements,    // a list with an element for each chunk
  kRows,        // a batch or rows of a dock, cut into chunks of consecutive rows, as many in each
};

// Which rank gets which chunk, and gives its result.
enum class ChunkRule : uint8_t {
  kEachRank,         // rank i gets chunk i
  kDataParallel,     // of a mesh: its dp coordinate; results of the first of every other dimension, and the last of pp
  kPipelineAsData,   // of a mesh: (cp·DP + dp)·PP + pp; results of the first of every other dimension
  kPipelineResults,  // a result of each pp coordinate, of the first of every other dimension; nothing is cut
};

struct ModeRules {
  absl::string_view name;  // "DP_COMPUTE_PROTO"
  ArgumentRule first;
  ArgumentRule rest;
  ChunkRule chunks;
  bool concatenates;  // the results, in the order of the chunks; otherwise they become a list in that order
};

// By Mode; kUser has none.
inline constexpr std::array<ModeRules, 12> kModeRules = {{
    {"ONE_TO_ALL", ArgumentRule::kReplicated, ArgumentRule::kReplicated, ChunkRule::kEachRank, false},
    {"ALL_TO_ALL", ArgumentRule::kSpread, ArgumentRule::kSpread, ChunkRule::kEachRank, false},
    {"DP_COMPUTE", ArgumentRule::kElements, ArgumentRule::kElements, ChunkRule::kEachRank, false},
    {"DP_COMPUTE_PROTO", ArgumentRule::kRows, ArgumentRule::kRows, ChunkRule::kEachRank, true},
    {"DP_COMPUTE_PROTO_WITH_FUNC", ArgumentRule::kReplicated, ArgumentRule::kRows, ChunkRule::kEachRank, true},
    {"DP_COMPUTE_METRIC", ArgumentRule::kRows, ArgumentRule::kRows, ChunkRule::kEachRank, false},
    {"ND_MESH", ArgumentRule::kRows, ArgumentRule::kRows, ChunkRule::kDataParallel, true},
    {"MEGATRON_COMPUTE", ArgumentRule::kElements, ArgumentRule::kElements, ChunkRule::kDataParallel, false},
    {"MEGATRON_COMPUTE_PROTO", ArgumentRule::kRows, ArgumentRule::kRows, ChunkRule::kDataParallel, true},
    {"MEGATRON_PP_AS_DP", ArgumentRule::kElements, ArgumentRule::kElements, ChunkRule::kPipelineAsData, false},
    {"MEGATRON_PP_AS_DP_PROTO", ArgumentRule::kRows, ArgumentRule::kRows, ChunkRule::kPipelineAsData, true},
    {"MEGATRON_PP_ONLY", ArgumentRule::kReplicated, ArgumentRule::kReplicated, ChunkRule::kPipelineResults, false},
}};

// `mode` is not kUser.
constexpr const ModeRules& RulesOf(Mode mode) { return kModeRules[static_cast<size_t>(mode)]; }

// The mode of this name (ModeRules). InvalidArgument, naming the nearest, if there is none.
absl::StatusOr<Mode> ModeNamed(absl::string_view name);

// What a call is dispatched to: ranks 0 … ranks − 1, which meshes may arrange. Every mesh has as many ranks.
struct GroupShape {
  int64_t ranks = 0;
  std::map<std::string, Mesh, std::less<>> meshes = {};
};

// A dispatch of one's own.
struct UserMode {
  std::string name = {};
  // The arguments of each rank. Any other number of lists than ranks fails the call.
  std::function<absl::StatusOr<std::vector<std::vector<Value>>>(const std::vector<Value>& arguments,
                                                                const GroupShape& shape)>
      split = {};
  // `results` has one of each rank.
  std::function<absl::StatusOr<Value>(std::vector<Value> results, const GroupShape& shape)> collect = {};
};

enum class Execute : uint8_t {
  kAll,
  kRankZero,  // rank 0 alone, whose result is the result; for ONE_TO_ALL and ALL_TO_ALL
};

// A mode with what it needs. A literal type, so that methods can be constants.
struct Dispatch {
  // The older modes use the mesh "megatron".
  constexpr Dispatch(Mode how, bool padded = false)  // NOLINT(google-explicit-constructor)
      : mode(how), mesh("megatron"), pad(padded) {}
  constexpr Dispatch(Mode how, absl::string_view mesh_name, bool padded = false)
      : mode(how), mesh(mesh_name), pad(padded) {}
  // `own` must outlive all calls.
  constexpr Dispatch(const UserMode& own) : mode(Mode::kUser), user(&own) {}  // NOLINT(google-explicit-constructor)

  Mode mode;
  // Which of the group's meshes, for the modes that need one.
  absl::string_view mesh = {};
  // Rows that do not divide are padded (row_weights.h) rather than refused. All batches of the call have as many rows.
  bool pad = false;
  const UserMode* user = nullptr;
};

// One chunk of rows for each data-parallel rank of a mesh of the group, which all ranks of its other dimensions get,
// too. (make_nd_compute_dataproto_dispatch_fn)
constexpr Dispatch NdMesh(absl::string_view mesh, bool pad = false) { return {Mode::kNdMesh, mesh, pad}; }

// A method as dispatch knows it.
struct MethodSpec {
  absl::string_view name = {};
  Dispatch dispatch = Mode::kAllToAll;
  Execute execute = Execute::kAll;
};

// One call, divided. Errors are InvalidArgument and NotFound, and say the method, what was given, and what would be
// right. Immutable; thread-safe.
class DividedCall {
 public:
  // Arguments are not changed, and their chunks share their memory.
  static absl::StatusOr<DividedCall> Of(const MethodSpec& method, const std::vector<Value>& arguments,
                                        const GroupShape& shape);

  // By rank, for the ranks that take part: all, or rank 0 alone.
  const std::vector<std::vector<Value>>& arguments() const { return arguments_; }

  // The result of the call, of one result for each of arguments(). Concatenated: batches (whose metrics become lists,
  // MetaBatch::Concat), rows of one partition without being fetched, or nothing if all are nothing. Copies of a padded
  // call are taken out. A list leaves out the ranks that had nothing but copies.
  absl::StatusOr<Value> Collect(std::vector<Value> results) const;

 private:
  // What one chunk of a padded call has.
  struct PaddedChunk {
    int64_t all = 0;
    int64_t real = 0;
  };

  explicit DividedCall(const MethodSpec& method)
      : name_(method.name), mode_(method.dispatch.mode), user_(method.dispatch.user) {}

  absl::Status DivideByUser(const std::vector<Value>& arguments, const GroupShape& shape);
  absl::Status DivideByRules(const Dispatch& dispatch, const std::vector<Value>& arguments, const GroupShape& shape);
  // The number of rows that all arguments to be cut have, if they need padding to be cut into `chunks`.
  absl::StatusOr<std::optional<int64_t>> RowsToPad(const std::vector<Value>& arguments, int64_t chunks) const;
  absl::StatusOr<std::vector<Value>> DivideArgument(const Value& argument, ArgumentRule rule, int64_t chunks) const;
  absl::StatusOr<Value> RealResult(const Value& result, size_t chunk) const;
  ArgumentRule RuleOf(size_t argument) const;
  // "DP_COMPUTE_PROTO", or the name of a user's mode.
  absl::string_view ModeName() const;
  // InvalidArgument, or the error, with the method and the mode.
  absl::Status Wrong(absl::string_view message) const;
  absl::Status Wrong(const absl::Status& status) const;

  std::string name_;
  Mode mode_;
  const UserMode* user_;
  GroupShape shape_ = {};  // of a user's mode
  bool rank_zero_ = false;
  std::vector<std::vector<Value>> arguments_ = {};
  // By chunk: the rank whose result counts.
  std::vector<size_t> collected_ = {};
  // By chunk, of a call that needed padding.
  std::optional<std::vector<PaddedChunk>> padded_ = {};
};

}  // namespace tdock::runtime
