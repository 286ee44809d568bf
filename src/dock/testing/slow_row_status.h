// Compares what a dock tells of a row with what its plain twin (slow_dock.h) knows. For tests.
#pragma once

#include <gtest/gtest.h>

#include "dock/testing/slow_table.h"

namespace tdock::dock {

inline void CheckEqual(const RowCellStatus& real, const RowCellStatus& expected) {
  ASSERT_EQ(real.state, expected.state) << expected.column;
  ASSERT_EQ(real.weights_version, expected.weights_version) << expected.column;
  ASSERT_EQ(real.writer, expected.writer) << expected.column;
}

inline void CheckEqual(const RowConsumerStatus& real, const RowConsumerStatus& expected) {
  ASSERT_EQ(real.state, expected.state) << expected.consumer;
  ASSERT_EQ(real.missing, expected.missing) << expected.consumer;
  ASSERT_EQ(real.redeliveries, expected.redeliveries) << expected.consumer;
  ASSERT_EQ(real.lease, expected.lease) << expected.consumer;
  ASSERT_EQ(real.taken, expected.taken) << expected.consumer;
  ASSERT_EQ(real.expires, expected.expires) << expected.consumer;
  ASSERT_EQ(real.uncommitted_step, expected.uncommitted_step) << expected.consumer;
}

inline void CheckAsKnown(const RowStatus& real, const SlowTable& twin) {
  ASSERT_EQ(real.key, twin.KeyOf(real.row));
  ASSERT_EQ(real.tags, twin.TagsOf(real.row));
  ASSERT_EQ(real.group, twin.GroupOf(real.row));
  ASSERT_EQ(real.age, twin.AgeOf(real.row));
  ASSERT_EQ(real.epoch, twin.EpochOf(real.row));
  for (const RowCellStatus& cell : real.cells) CheckEqual(cell, twin.StatusOfCell(real.row, cell.column));
  ASSERT_EQ(real.consumers.size(), twin.consumers());
  for (const RowConsumerStatus& consumer : real.consumers) {
    CheckEqual(consumer, twin.StatusFor(consumer.consumer, real.row));
  }
}

}  // namespace tdock::dock
