// Batches of every kind, for tests of what must hold for all of them.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "tdock/meta_batch.h"

namespace tdock {

// A batch of this column alone, "x".
inline MetaBatch Only(Column column) {
  Batch batch;
  EXPECT_TRUE(batch.Add("x", std::move(column)).ok());
  return MetaBatch(std::move(batch));
}

inline Buffer RandomBytes(Rng& rng, size_t size, uint64_t below) {
  Buffer bytes = Buffer::Allocate(size);
  for (size_t i = 0; i < size; ++i) bytes.mutable_data()[i] = static_cast<std::byte>(rng.Below(below));
  return bytes;
}

// Some are slices of longer columns.
inline Column RandomColumn(Rng& rng, int64_t rows) {
  const int64_t before = static_cast<int64_t>(rng.Below(3)), made = before + rows;
  const auto dtype = static_cast<DType>(rng.Below(static_cast<uint64_t>(DType::kF8E5M2) + 1));
  const uint64_t below = dtype == DType::kBool ? 2 : 256;
  const Shape shapes[] = {{}, {3}, {2, 2}};
  const Shape& shape = shapes[rng.Below(3)];
  const size_t item = static_cast<size_t>(*ItemBytes(ColumnType::Dense(dtype, shape)));
  const uint64_t kind = rng.Below(3);
  if (kind == 0) {
    return *Column::MakeDense(dtype, shape, made, RandomBytes(rng, static_cast<size_t>(made) * item, below))
                ->Slice(before, rows);
  }
  std::vector<int64_t> offsets = {0};
  for (int64_t i = 0; i < made; ++i) offsets.push_back(offsets.back() + static_cast<int64_t>(rng.Below(5)));
  Buffer offset_bytes = Buffer::CopyOf(std::as_bytes(std::span(offsets)));
  const size_t items = static_cast<size_t>(offsets.back());
  if (kind == 1) {
    return *Column::MakeRagged(dtype, shape, RandomBytes(rng, items * item, below), offset_bytes)->Slice(before, rows);
  }
  return *Column::MakeBytes(RandomBytes(rng, items, 256), offset_bytes)->Slice(before, rows);
}

inline MetaValue RandomMetaValue(Rng& rng, int depth) {
  switch (rng.Below(depth > 0 ? 6 : 4)) {
    case 0:
      return rng.Below(2) == 1;
    case 1:
      return static_cast<int64_t>(rng.Next());
    case 2:
      return rng.Uniform();
    case 3:
      return std::string(rng.Below(9), 'x');
    case 4: {
      MetaValue::List list;
      for (uint64_t i = rng.Below(4); i > 0; --i) list.push_back(RandomMetaValue(rng, depth - 1));
      return list;
    }
    default: {
      Meta map;
      for (uint64_t i = rng.Below(4); i > 0; --i) map.emplace(absl::StrCat("k", i), RandomMetaValue(rng, depth - 1));
      return map;
    }
  }
}

// `columns` columns "c0", "c1", … and up to three keys of meta "m1", "m2", "m3".
inline MetaBatch RandomBatch(Rng& rng, int64_t rows, int columns) {
  Batch batch;
  for (int i = 0; i < columns; ++i) {
    if (!batch.Add(absl::StrCat("c", i), RandomColumn(rng, rows)).ok()) std::abort();
  }
  Meta meta;
  for (uint64_t i = rng.Below(4); i > 0; --i) meta.emplace(absl::StrCat("m", i), RandomMetaValue(rng, 2));
  return MetaBatch(std::move(batch), std::move(meta));
}

}  // namespace tdock
