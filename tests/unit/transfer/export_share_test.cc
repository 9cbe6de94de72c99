// Goal: exports get the processor time between their ends by the bytes that they sent.
#include "common/transfer/export_share.h"

#include <gtest/gtest.h>

namespace tandem::transfer {
namespace {

TEST(ExportShare, DividesTheTimeByBytes) {
  ExportShare share;
  // Half of what was moved belongs to other transfers.
  EXPECT_EQ(share.Take(1000, 2000, absl::Microseconds(60)), absl::Microseconds(30));
  // Only what came after that counts.
  EXPECT_EQ(share.Take(500, 3000, absl::Microseconds(100)), absl::Microseconds(20));
  EXPECT_EQ(share.Take(100, 3100, absl::Microseconds(110)), absl::Microseconds(10));
}

TEST(ExportShare, WithoutBytesThereIsNothingToDivide) {
  ExportShare share;
  EXPECT_EQ(share.Take(0, 0, absl::Microseconds(5)), absl::ZeroDuration());
  EXPECT_EQ(share.Take(0, 10, absl::Microseconds(9)), absl::ZeroDuration());
}

}  // namespace
}  // namespace tandem::transfer
