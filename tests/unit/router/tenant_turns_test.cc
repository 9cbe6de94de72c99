// Goal: tenants that wait share by weight, whatever each asks for; one that comes back neither
// gains nor loses by it; one without room leaves its turns to others.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "router/core/admission_queue.h"
#include "tests/unit/router/admission_queue_fixture.h"

namespace tandem::router {
namespace {

// The shares hold for tenants that ask for more than others, and when few run at a time.
TEST(AdmissionQueue, TenantsShareByWeight) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  Tenants tenants({{1, 1}, {2, 3}, {3, 0.5}});
  for (Serial number = 0; number < 999; ++number) {
    tenants.Wait(1000 + number);
    if (number % 2 == 0) tenants.Wait(2000 + number);
    if (number % 3 == 0) tenants.Wait(3000 + number);
  }
  for (int i = 0; i < 150; ++i) {
    tenants.Place(1 + random() % 5);
    constexpr double kOne = 280;  // the dearest sequence
    EXPECT_NEAR(tenants.got[2], tenants.got[1], kOne / 1 + kOne / 3);
    EXPECT_NEAR(tenants.got[3], tenants.got[1], kOne / 1 + kOne / 0.5);
  }
  EXPECT_GT(tenants.got[1], 1000);
  while (tenants.queue.size() > 0) tenants.Place(100);
  for (const char* tenant : {"t1", "t2", "t3"}) tenants.queue.Leave(tenant);
  EXPECT_EQ(tenants.queue.tenants(), 0u);
}

TEST(AdmissionQueue, WhoAsksForLittlePassesABacklog) {
  Tenants tenants({{1, 1}, {2, 1}});
  for (Serial number = 0; number < 500; ++number) tenants.Wait(1000 + number);
  tenants.Place(10);
  tenants.Wait(2001);
  tenants.Place(1);
  EXPECT_EQ(tenants.placed.back(), 2001u);
}

// It pays nothing later for what it got while no other tenant waited, and the other saves nothing
// up while it is away.
TEST(AdmissionQueue, WhoComesBackBeginsWhereTheOthersAre) {
  Tenants tenants({{1, 1}, {2, 1}});
  for (Serial number = 0; number < 900; ++number) tenants.Wait(1000 + number);
  tenants.Place(200);
  for (Serial number = 0; number < 900; ++number) tenants.Wait(2000 + number);
  tenants.placed.clear();
  for (int i = 0; i < 100; ++i) tenants.Place(1);
  const auto of_first = std::count_if(tenants.placed.begin(), tenants.placed.end(),
                                      [](Serial serial) { return serial < 2000; });
  EXPECT_GE(of_first, 47);
  EXPECT_LE(of_first, 53);
}

// A tenant of little weight sends one request after the other and has none for a moment between
// them. What it got beyond its share still counts.
TEST(AdmissionQueue, WhoLeavesForAMomentStillOwes) {
  Tenants tenants({{1, 1}, {2, 100}});
  for (Serial number = 0; number < 999; ++number) tenants.Wait(2000 + number);
  tenants.Wait(1000);
  int requests = 1;
  for (int i = 0; i < 400; ++i) {
    tenants.Place(1);
    constexpr double kOne = 280;  // the dearest sequence
    ASSERT_NEAR(tenants.got[1], tenants.got[2], kOne + kOne / 100) << i;
    if (tenants.placed.back() >= 2000) continue;
    tenants.queue.Leave("t1");
    tenants.queue.Join("t1", 1);
    tenants.Wait(1000 + requests++);
  }
  EXPECT_GE(requests, 3);
}

// With no request in the queue nobody owes anybody. Few of those that have left are remembered.
TEST(AdmissionQueue, DebtsAreBoundedAndEnd) {
  AdmissionQueue queue;
  queue.Join("stays", 1);
  for (int i = 0; i < 2 * AdmissionQueue::kOwingMax; ++i) {
    const std::string tenant = absl::StrCat("t", i);
    queue.Join(tenant, 1);
    queue.Charge(tenant, 1 + i);
    queue.Leave(tenant);
  }
  EXPECT_EQ(queue.tenants(), 1u);
  EXPECT_EQ(queue.tenants_owing(), static_cast<size_t>(AdmissionQueue::kOwingMax));
  queue.Leave("stays");
  EXPECT_EQ(queue.tenants_owing(), 0u);
}

// Eight sequences without room end a walk's part. A tenant with many such leaves turns to others.
TEST(AdmissionQueue, ATenantWithoutRoomLeavesTurnsToOthers) {
  AdmissionQueue queue;
  Room room;
  queue.Join("large", 1);
  queue.Join("small", 1);
  room.room = 50;
  room.tells_room = false;
  for (Serial serial = 1; serial <= 20; ++serial) {
    room.needs[serial] = 1000 - static_cast<int64_t>(serial);
    queue.Insert("large", {kArrived, serial});
  }
  for (Serial serial = 101; serial <= 103; ++serial) {
    room.needs[serial] = 10;
    queue.Insert("small", {kArrived, serial});
  }
  queue.PlaceAll(room);
  EXPECT_EQ(room.placed, (std::vector<Serial>{101, 102, 103}));
  EXPECT_EQ(room.tried, 2 * AdmissionQueue::kFailedMax + 3);
}

}  // namespace
}  // namespace tandem::router
