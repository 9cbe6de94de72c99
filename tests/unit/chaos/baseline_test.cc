// Goal: after a chaos run what the cluster still holds is a leak, and a run that its user
// interrupts while this is looked at has none: it was interrupted.
#include "cli/chaos/baseline.h"

#include "tests/testing/status_matchers.h"
#include "tests/unit/chaos/fake_cluster.h"

namespace tandem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class BaselineTest : public ::testing::Test {
 protected:
  BaselineTest() : files_before_(static_cast<size_t>(topology_.processes()), 20) {
    cluster_.open_files = files_before_;
  }
  auto Find() {
    return FindLeaks(cluster_, topology_, files_before_, [this](absl::Duration) {
      ++waits_;
      return interrupted_;
    });
  }

  const ChaosTopology topology_;
  FakeCluster cluster_;
  std::vector<int64_t> files_before_;
  bool interrupted_ = false;
  int waits_ = 0;
};

TEST_F(BaselineTest, AQuietClusterHasNoLeaks) {
  const auto leaks = Find();
  ASSERT_OK(leaks);
  EXPECT_THAT(*leaks, IsEmpty());
  EXPECT_EQ(waits_, 0);
}

TEST_F(BaselineTest, FilesThatStayOpenAreALeak) {
  cluster_.open_files[1] += 17;
  const auto leaks = Find();
  ASSERT_OK(leaks);
  EXPECT_THAT(*leaks, ElementsAre(HasSubstr("37 open files, before the faults 20")));
}

TEST_F(BaselineTest, AnInterruptWhileProcessesComeBackIsNoLeak) {
  cluster_.ready = false;
  interrupted_ = true;
  EXPECT_EQ(Find().status(), absl::CancelledError("interrupted"));
  EXPECT_EQ(waits_, 1);
}

TEST_F(BaselineTest, AnInterruptWhileBlocksAreHeldIsNoLeak) {
  cluster_.holdings = "decode-0 holds 3 blocks";
  interrupted_ = true;
  EXPECT_EQ(Find().status(), absl::CancelledError("interrupted"));
  EXPECT_EQ(waits_, 1);
}

}  // namespace
}  // namespace tandem::cli
