// Goal: a file that a flag names is read whole, up to its bound; what cannot be read, such as a
// folder, is named with the flag and what was expected.
#include "common/base/read_file.h"

#include <gmock/gmock.h>

#include <fstream>

#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace tandem {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr absl::StatusCode kNotFound = absl::StatusCode::kNotFound;
constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ReadFile, ReadsTheWholeFile) {
  const testing::TestFolder folder("read-file");
  const std::string text(200'000, 'x');
  std::ofstream(folder / "text") << text;
  ASSERT_OK_AND_ASSIGN(const std::string read, ReadFile("keys", folder / "text", text.size()));
  EXPECT_EQ(read, text);
  std::ofstream(folder / "empty").flush();
  ASSERT_OK_AND_ASSIGN(const std::string nothing, ReadFile("keys", folder / "empty", 0));
  EXPECT_EQ(nothing, "");
}

TEST(ReadFile, NamesWhatCannotBeRead) {
  const testing::TestFolder folder("read-file");
  EXPECT_THAT(ReadFile("keys", folder.path(), 100).status(),
              StatusIs(kNotFound, HasSubstr("keys: cannot read " + folder.path() +
                                            ": Is a directory; expected a file")));
  const std::string missing = folder / "missing";
  EXPECT_THAT(ReadFile("keys", missing, 100).status(),
              StatusIs(kNotFound, HasSubstr("keys: cannot read " + missing + ": No such file")));
}

TEST(ReadFile, EndsAtItsBound) {
  EXPECT_THAT(ReadFile("keys", "/dev/zero", 100).status(),
              StatusIs(kInvalid, HasSubstr("keys: /dev/zero: longer than expected, at most 100")));
}

}  // namespace
}  // namespace tandem
