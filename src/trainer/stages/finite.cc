#include "trainer/stages/finite.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::trainer {
namespace {

template <class T>
absl::Status CheckFiniteColumn(const NamedColumn& named, std::span<const RowId> ids) {
  for (int64_t row = 0; row < named.column.rows(); ++row) {
    const std::span<const T> values = *named.column.Row<T>(row);
    const auto bad = std::find_if(values.begin(), values.end(), [](T v) { return !std::isfinite(v); });
    if (bad == values.end()) continue;
    return absl::InternalError(absl::StrCat("wrote ", *bad, " into column '", EscapeForMessage(named.name), "' of row ",
                                            ids[static_cast<size_t>(row)], ", at position ", bad - values.begin()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckFinite(const Batch& columns, std::span<const RowId> ids) {
  for (const NamedColumn& named : columns.columns()) {
    if (named.column.type().kind == ColumnKind::kBytes) continue;
    if (named.column.type().dtype == DType::kF32) TDOCK_RETURN_IF_ERROR(CheckFiniteColumn<float>(named, ids));
    if (named.column.type().dtype == DType::kF64) TDOCK_RETURN_IF_ERROR(CheckFiniteColumn<double>(named, ids));
  }
  return absl::OkStatus();
}

}  // namespace tdock::trainer
