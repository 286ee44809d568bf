#include "runtime/dispatch/row_chunks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "runtime/dispatch/row_weights.h"
#include "tdock/batch.h"
#include "tdock/meta_batch.h"

namespace tdock::runtime {
namespace {

RowsRef PartOf(const RowsRef& ref, size_t begin, size_t count) {
  RowsRef part{.partition = ref.partition, .columns = ref.columns, .meta = ref.meta};
  part.rows.assign(ref.rows.begin() + static_cast<std::ptrdiff_t>(begin),
                   ref.rows.begin() + static_cast<std::ptrdiff_t>(begin + count));
  if (ref.real_rows.has_value()) {
    part.real_rows = std::clamp<int64_t>(*ref.real_rows - static_cast<int64_t>(begin), 0, static_cast<int64_t>(count));
  }
  return part;
}

std::vector<Value> ChunksOf(const RowsRef& ref, size_t count) {
  const size_t size = ref.rows.size() / count;
  std::vector<Value> chunks;
  for (size_t i = 0; i < count; ++i) chunks.emplace_back(PartOf(ref, i * size, size));
  return chunks;
}

absl::StatusOr<std::vector<Value>> PadAndChunkRef(const RowsRef& ref, size_t count) {
  if (ref.real_rows.has_value()) {
    return absl::InvalidArgumentError("these rows have been padded before; pass the real ones only");
  }
  RowsRef padded = ref;
  const size_t real = ref.rows.size();
  while (padded.rows.size() % count != 0) padded.rows.push_back(padded.rows[padded.rows.size() - real]);
  padded.real_rows = static_cast<int64_t>(real);
  return ChunksOf(padded, count);
}

absl::StatusOr<std::vector<Value>> PadAndChunkBatch(const MetaBatch& batch, int64_t count) {
  TDOCK_ASSIGN_OR_RETURN(const PaddedBatch padded, PaddedBatch::ToDivisor(batch, count));
  Batch columns = padded.batch().columns();
  if (const absl::Status added = columns.Add(kRowWeights, padded.Weights()); !added.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("the batch has a column '", kRowWeights,
                                                   "', which marks padding; rename it, or pass the real rows only"));
  }
  TDOCK_ASSIGN_OR_RETURN(const std::vector<MetaBatch> parts, MetaBatch(columns, batch.meta()).Chunk(count));
  return std::vector<Value>(parts.begin(), parts.end());
}

absl::StatusOr<Value> ConcatBatches(const std::vector<Value>& parts) {
  std::vector<MetaBatch> batches;
  batches.reserve(parts.size());
  for (const Value& part : parts) batches.push_back(*part.As<MetaBatch>());
  TDOCK_ASSIGN_OR_RETURN(MetaBatch joined, MetaBatch::Concat(batches));
  return Value(std::move(joined));
}

absl::StatusOr<Value> ConcatRefs(const std::vector<Value>& parts) {
  RowsRef joined = *parts.front().As<RowsRef>();
  std::vector<const Meta*> metas;
  joined.rows.clear();
  for (size_t i = 0; i < parts.size(); ++i) {
    const RowsRef& part = *parts[i].As<RowsRef>();
    if (part.partition != joined.partition) {
      return absl::InvalidArgumentError(absl::StrCat("result 0 has rows of partition '",
                                                     EscapeForMessage(joined.partition), "', result ", i, " of '",
                                                     EscapeForMessage(part.partition), "'"));
    }
    if (part.columns != joined.columns) {
      return absl::InvalidArgumentError(absl::StrCat("result 0 has columns ", absl::StrJoin(joined.columns, ", "),
                                                     ", result ", i, " ", absl::StrJoin(part.columns, ", ")));
    }
    const auto real = part.rows.begin() +
                      static_cast<std::ptrdiff_t>(part.real_rows.value_or(static_cast<int64_t>(part.rows.size())));
    joined.rows.insert(joined.rows.end(), part.rows.begin(), real);
    metas.push_back(&part.meta);
  }
  joined.real_rows.reset();
  TDOCK_ASSIGN_OR_RETURN(joined.meta, ConcatMeta(metas, {"metrics"}));
  return Value(std::move(joined));
}

}  // namespace

std::optional<int64_t> RowCount(const Value& value) {
  if (const MetaBatch* batch = value.As<MetaBatch>()) return batch->rows();
  if (const RowsRef* ref = value.As<RowsRef>()) return static_cast<int64_t>(ref->rows.size());
  return std::nullopt;
}

bool IsMetaOnly(const Value& value) {
  const MetaBatch* batch = value.As<MetaBatch>();
  return batch != nullptr && batch->columns().empty();
}

absl::StatusOr<Value> FirstRows(const Value& rows, int64_t count) {
  if (const RowsRef* ref = rows.As<RowsRef>()) {
    RowsRef first = PartOf(*ref, 0, static_cast<size_t>(count));
    first.real_rows.reset();
    return Value(std::move(first));
  }
  const MetaBatch& batch = *rows.As<MetaBatch>();
  if (count == batch.rows()) return rows;
  TDOCK_ASSIGN_OR_RETURN(MetaBatch first, batch.Slice(0, count));
  return Value(std::move(first));
}

absl::StatusOr<std::vector<Value>> ChunkRows(const Value& rows, int64_t count) {
  if (*RowCount(rows) % count != 0) {
    return absl::InvalidArgumentError(absl::StrCat(*RowCount(rows), " rows cannot be divided into ", count,
                                                   " equal chunks; pass a multiple of ", count,
                                                   ", or let the method pad them"));
  }
  if (const RowsRef* ref = rows.As<RowsRef>()) return ChunksOf(*ref, static_cast<size_t>(count));
  TDOCK_ASSIGN_OR_RETURN(const std::vector<MetaBatch> parts, rows.As<MetaBatch>()->Chunk(count));
  return std::vector<Value>(parts.begin(), parts.end());
}

absl::StatusOr<std::vector<Value>> PadAndChunkRows(const Value& rows, int64_t count) {
  if (const RowsRef* ref = rows.As<RowsRef>()) return PadAndChunkRef(*ref, static_cast<size_t>(count));
  return PadAndChunkBatch(*rows.As<MetaBatch>(), count);
}

absl::StatusOr<Value> ConcatRows(const std::vector<Value>& parts) {
  const auto all = [&parts](auto holds) { return std::all_of(parts.begin(), parts.end(), holds); };
  if (all([](const Value& part) { return part.IsNothing(); })) return Value();
  if (all([](const Value& part) { return part.As<MetaBatch>() != nullptr; })) return ConcatBatches(parts);
  if (all([](const Value& part) { return part.As<RowsRef>() != nullptr; })) return ConcatRefs(parts);
  std::string given;
  for (size_t i = 0; i < parts.size() && i < 8; ++i) {
    absl::StrAppend(&given, i == 0 ? "" : ", ", parts[i].Describe());
  }
  if (parts.size() > 8) given += ", …";
  return absl::InvalidArgumentError(
      absl::StrCat("results are concatenated if all are batches, all are rows of a partition, or all are nothing; "
                   "these are ",
                   given));
}

}  // namespace tdock::runtime
