#include "runtime/dispatch/dispatch.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/nearest.h"
#include "core/base/status.h"
#include "runtime/dispatch/row_chunks.h"
#include "runtime/dispatch/row_weights.h"

namespace tdock::runtime {
namespace {

struct ChunkPlan {
  int64_t count = 0;
  std::vector<size_t> of_rank = {};    // by rank: its chunk
  std::vector<size_t> collected = {};  // by chunk: the rank whose result counts
};

ChunkPlan PlanForEachRank(int64_t ranks) {
  ChunkPlan plan{.count = ranks};
  for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) {
    plan.of_rank.push_back(rank);
    plan.collected.push_back(rank);
  }
  return plan;
}

// The position of a rank along a dimension, and how many there are: the only one if the mesh has no such dimension.
struct AlongDimension {
  int64_t at = 0;
  int64_t size = 1;
};

AlongDimension Along(const Mesh& mesh, int64_t rank, absl::string_view name) {
  if (!mesh.Has(name)) return {};
  return {*mesh.Coordinate(rank, name), *mesh.Size(name)};
}

// Whether the rank is the first of every dimension but `names`.
bool IsFirstExceptAlong(const Mesh& mesh, int64_t rank, std::initializer_list<absl::string_view> names) {
  const std::vector<int64_t> position = *mesh.Coordinates(rank);
  for (size_t i = 0; i < position.size(); ++i) {
    const std::string& name = mesh.dimensions()[i].name;
    if (position[i] != 0 && std::find(names.begin(), names.end(), name) == names.end()) return false;
  }
  return true;
}

ChunkPlan PlanForMesh(const Mesh& mesh, ChunkRule rule) {
  const AlongDimension dp_of_all = Along(mesh, 0, "dp"), pp_of_all = Along(mesh, 0, "pp"),
                       cp_of_all = Along(mesh, 0, "cp");
  ChunkPlan plan;
  plan.count = rule == ChunkRule::kDataParallel     ? dp_of_all.size
               : rule == ChunkRule::kPipelineAsData ? dp_of_all.size * pp_of_all.size * cp_of_all.size
                                                    : pp_of_all.size;
  plan.collected.resize(static_cast<size_t>(plan.count));
  for (int64_t rank = 0; rank < mesh.ranks(); ++rank) {
    const AlongDimension dp = Along(mesh, rank, "dp"), pp = Along(mesh, rank, "pp"), cp = Along(mesh, rank, "cp");
    int64_t chunk = 0;
    bool collects = false;
    if (rule == ChunkRule::kDataParallel) {
      chunk = dp.at;
      collects = pp.at == pp.size - 1 && IsFirstExceptAlong(mesh, rank, {"dp", "pp"});
    } else if (rule == ChunkRule::kPipelineAsData) {
      chunk = (cp.at * dp.size + dp.at) * pp.size + pp.at;
      collects = IsFirstExceptAlong(mesh, rank, {"dp", "pp", "cp"});
    } else {
      chunk = pp.at;
      collects = IsFirstExceptAlong(mesh, rank, {"pp"});
    }
    plan.of_rank.push_back(static_cast<size_t>(chunk));
    if (collects) plan.collected[static_cast<size_t>(chunk)] = static_cast<size_t>(rank);
  }
  return plan;
}

absl::StatusOr<ChunkPlan> PlanChunks(ChunkRule rule, absl::string_view name, const GroupShape& shape) {
  if (rule == ChunkRule::kEachRank) return PlanForEachRank(shape.ranks);
  const auto mesh = shape.meshes.find(name);
  if (mesh == shape.meshes.end()) {
    std::string known;
    for (const auto& [other, unused] : shape.meshes)
      absl::StrAppend(&known, known.empty() ? "" : ", ", "'", other, "'");
    return absl::NotFoundError(absl::StrCat("the group has no mesh '", name, "'; ",
                                            known.empty() ? "it has none" : absl::StrCat("it has ", known)));
  }
  if (mesh->second.ranks() != shape.ranks) {
    return absl::InvalidArgumentError(absl::StrCat("mesh '", name, "' (", mesh->second.ToString(), ") has ",
                                                   mesh->second.ranks(), " ranks, the group ", shape.ranks));
  }
  for (const absl::string_view dimension : {"dp", "pp"}) {
    const bool needed = dimension == "dp" ? rule != ChunkRule::kPipelineResults : rule != ChunkRule::kDataParallel;
    if (needed && !mesh->second.Has(dimension)) {
      return absl::InvalidArgumentError(absl::StrCat("mesh '", name, "' (", mesh->second.ToString(),
                                                     ") has no dimension '", dimension,
                                                     "'; make it with one, of size 1 if need be"));
    }
  }
  return PlanForMesh(mesh->second, rule);
}

}  // namespace

absl::StatusOr<Mode> ModeNamed(absl::string_view name) {
  std::vector<std::string> names;
  for (size_t i = 0; i < kModeRules.size(); ++i) {
    if (kModeRules[i].name == name) return static_cast<Mode>(i);
    names.emplace_back(kModeRules[i].name);
  }
  const std::optional<std::string> nearest = NearestKey(name, names);
  return absl::InvalidArgumentError(absl::StrCat("there is no dispatch mode '", name, "'",
                                                 nearest ? absl::StrCat("; did you mean ", *nearest, "?") : ""));
}

absl::string_view DividedCall::ModeName() const {
  return mode_ == Mode::kUser ? absl::string_view(user_->name) : RulesOf(mode_).name;
}

absl::Status DividedCall::Wrong(absl::string_view message) const { return Wrong(absl::InvalidArgumentError(message)); }

absl::Status DividedCall::Wrong(const absl::Status& status) const {
  return Annotate(status, absl::StrCat("method '", name_, "' (", ModeName(), ")"));
}

absl::StatusOr<DividedCall> DividedCall::Of(const MethodSpec& method, const std::vector<Value>& arguments,
                                            const GroupShape& shape) {
  DividedCall call(method);
  if (shape.ranks < 1) return call.Wrong("the group has no workers");
  for (size_t i = 0; i < arguments.size(); ++i) {
    const absl::Status depth = CheckDepth(arguments[i], absl::StrCat("argument ", i));
    if (!depth.ok()) return call.Wrong(depth);
  }
  absl::Status divided;
  if (method.dispatch.mode == Mode::kUser) {
    divided = call.DivideByUser(arguments, shape);
  } else if (method.execute == Execute::kAll) {
    divided = call.DivideByRules(method.dispatch, arguments, shape);
  } else if (method.dispatch.mode == Mode::kOneToAll || method.dispatch.mode == Mode::kAllToAll) {
    call.rank_zero_ = true;
    call.arguments_ = {arguments};
  } else {
    return call.Wrong(
        "RANK_ZERO runs a method on rank 0 alone, so its arguments cannot be cut for the others; "
        "dispatch it ONE_TO_ALL");
  }
  if (!divided.ok()) return call.Wrong(divided);
  return call;
}

absl::Status DividedCall::DivideByUser(const std::vector<Value>& arguments, const GroupShape& shape) {
  TDOCK_ASSIGN_OR_RETURN(arguments_, user_->split(arguments, shape));
  if (arguments_.size() != static_cast<size_t>(shape.ranks)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the mode split the arguments for ", arguments_.size(), " ranks; there are ", shape.ranks));
  }
  shape_ = shape;
  return absl::OkStatus();
}

ArgumentRule DividedCall::RuleOf(size_t argument) const {
  return argument == 0 ? RulesOf(mode_).first : RulesOf(mode_).rest;
}

absl::Status DividedCall::DivideByRules(const Dispatch& dispatch, const std::vector<Value>& arguments,
                                        const GroupShape& shape) {
  const ModeRules& rules = RulesOf(mode_);
  TDOCK_ASSIGN_OR_RETURN(const ChunkPlan plan, PlanChunks(rules.chunks, dispatch.mesh, shape));
  collected_ = plan.collected;
  if (dispatch.pad) {
    TDOCK_ASSIGN_OR_RETURN(const std::optional<int64_t> real, RowsToPad(arguments, plan.count));
    if (real.has_value()) {
      const int64_t size = *real / plan.count + 1;
      padded_.emplace();
      for (int64_t i = 0; i < plan.count; ++i) {
        padded_->push_back({.all = size, .real = std::clamp<int64_t>(*real - i * size, 0, size)});
      }
    }
  }
  arguments_.resize(static_cast<size_t>(shape.ranks));
  for (size_t i = 0; i < arguments.size(); ++i) {
    absl::StatusOr<std::vector<Value>> chunks = DivideArgument(arguments[i], RuleOf(i), plan.count);
    if (!chunks.ok()) return Annotate(chunks.status(), absl::StrCat("argument ", i));
    for (size_t rank = 0; rank < arguments_.size(); ++rank) {
      arguments_[rank].push_back(chunks->empty() ? arguments[i] : (*chunks)[plan.of_rank[rank]]);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int64_t>> DividedCall::RowsToPad(const std::vector<Value>& arguments,
                                                              int64_t chunks) const {
  std::optional<int64_t> rows;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (RuleOf(i) != ArgumentRule::kRows || IsMetaOnly(arguments[i])) continue;
    const std::optional<int64_t> count = RowCount(arguments[i]);
    if (!count.has_value()) continue;  // refused where it is divided
    if (rows.value_or(*count) != *count) {
      return absl::InvalidArgumentError(absl::StrCat("argument ", i, " has ", *count, " rows, one before it ", *rows,
                                                     "; a call that may be padded needs as many in each"));
    }
    rows = count;
  }
  if (!rows.has_value() || *rows % chunks == 0) return std::nullopt;
  return rows;
}

// None if every rank gets the argument.
absl::StatusOr<std::vector<Value>> DividedCall::DivideArgument(const Value& argument, ArgumentRule rule,
                                                               int64_t chunks) const {
  const Value::List* list = argument.As<Value::List>();
  const bool fits = list != nullptr && static_cast<int64_t>(list->size()) == chunks;
  switch (rule) {
    case ArgumentRule::kReplicated:
      return std::vector<Value>();
    case ArgumentRule::kSpread:
      return fits ? *list : std::vector<Value>();
    case ArgumentRule::kElements:
      if (!fits) return argument.Unexpected(absl::StrCat("a list of ", chunks, ", an element for each chunk"));
      return *list;
    case ArgumentRule::kRows:
      break;
  }
  if (!RowCount(argument).has_value()) return argument.Unexpected("a batch, or rows of a partition, to be cut by rows");
  if (IsMetaOnly(argument)) return std::vector<Value>();
  return padded_.has_value() ? PadAndChunkRows(argument, chunks) : ChunkRows(argument, chunks);
}

// The part of a result that is not of copies.
absl::StatusOr<Value> DividedCall::RealResult(const Value& result, size_t chunk) const {
  const std::optional<int64_t> rows = RowCount(result);
  if (!padded_.has_value() || !rows.has_value() || IsMetaOnly(result)) return result;
  if (const MetaBatch* batch = result.As<MetaBatch>();
      batch != nullptr && batch->columns().Find(kRowWeights) != nullptr) {
    TDOCK_ASSIGN_OR_RETURN(MetaBatch real, RealRows(*batch));
    return Value(std::move(real));
  }
  if (const RowsRef* ref = result.As<RowsRef>(); ref != nullptr && ref->real_rows.has_value()) {
    return FirstRows(result, std::clamp<int64_t>(*ref->real_rows, 0, *rows));
  }
  const auto [all, real] = (*padded_)[chunk];
  if (*rows == all || *rows == real) return FirstRows(result, real);
  return absl::InvalidArgumentError(absl::StrCat(
      "the result of rank ", collected_[chunk], " has ", *rows, " rows. Its argument was padded to ", all,
      " rows, of which ", real, " are real: return as many, or with the rows their column '", kRowWeights, "'"));
}

absl::StatusOr<Value> DividedCall::Collect(std::vector<Value> results) const {
  if (results.size() != arguments_.size()) {
    return Wrong(absl::StrCat("there are ", results.size(), " results of ", arguments_.size(), " ranks"));
  }
  for (size_t rank = 0; rank < results.size(); ++rank) {
    // The list that they may become is one deeper.
    const absl::Status depth = CheckDepth(Value::List{results[rank]}, absl::StrCat("the result of rank ", rank));
    if (!depth.ok()) return Wrong(depth);
  }
  if (rank_zero_) return std::move(results.front());
  if (mode_ == Mode::kUser) {
    absl::StatusOr<Value> collected = user_->collect(std::move(results), shape_);
    return collected.ok() ? std::move(collected) : Wrong(collected.status());
  }
  std::vector<Value> real;
  for (size_t chunk = 0; chunk < collected_.size(); ++chunk) {
    if (padded_.has_value() && (*padded_)[chunk].real == 0) continue;
    absl::StatusOr<Value> result = RealResult(results[collected_[chunk]], chunk);
    if (!result.ok()) return Wrong(result.status());
    real.push_back(*std::move(result));
  }
  if (!RulesOf(mode_).concatenates) return Value(std::move(real));
  absl::StatusOr<Value> joined = ConcatRows(real);
  return joined.ok() ? std::move(joined) : Wrong(joined.status());
}

}  // namespace tdock::runtime
