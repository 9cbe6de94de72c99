// Goal: keywords of OpenAPI and of editors that restrict no value change nothing about a schema;
// others, also of OpenAPI, are refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/unit/guided/acceptance.h"

namespace tandem::guided {
namespace {

using ::testing::HasSubstr;
constexpr auto kJsonSchema = request::GuidedParams::Kind::kJsonSchema;

absl::StatusOr<Acceptor> WithKeyword(const char* name) {
  return Acceptor::Create(kJsonSchema,
                          absl::StrCat(R"({"properties":{"a":{"type":"integer",")", name,
                                       R"(":{"type":5}}},"required":["a"],")", name, "\":[1]}"));
}

TEST(Annotations, ThoseOfOpenApiAndEditorsRestrictNothing) {
  for (const char* name : {"discriminator", "example", "externalDocs", "xml", "enumNames",
                           "markdownDescription", "propertyOrdering", "x-order", "x-"}) {
    const auto acceptor = WithKeyword(name);
    ASSERT_TRUE(acceptor.ok()) << acceptor.status();
    EXPECT_TRUE(acceptor->Accepts(R"({"a":1})")) << name;
    EXPECT_FALSE(acceptor->Begins(R"({"a":n)")) << name;
  }
}

// What pydantic writes for a union that a member tells apart.
TEST(Annotations, ADiscriminatedUnionIsServed) {
  const auto acceptor = Acceptor::Create(kJsonSchema, R"({"$defs":{
      "Cat":{"properties":{"kind":{"const":"cat"}},"required":["kind"]},
      "Dog":{"properties":{"kind":{"const":"dog"}},"required":["kind"]}},
      "discriminator":{"mapping":{"cat":"#/$defs/Cat","dog":"#/$defs/Dog"},"propertyName":"kind"},
      "type":"object","oneOf":[{"$ref":"#/$defs/Cat"},{"$ref":"#/$defs/Dog"}]})");
  ASSERT_TRUE(acceptor.ok()) << acceptor.status();
  EXPECT_TRUE(acceptor->Accepts(R"({"kind":"dog"})"));
  EXPECT_FALSE(acceptor->Accepts(R"({"kind":"cow"})"));
}

TEST(Annotations, OthersAreRefusedByName) {
  for (const char* name : {"nullable", "unknown", "X-order", "x"}) {
    EXPECT_THAT(WithKeyword(name).status().message(),
                HasSubstr(absl::StrCat(name, ": this keyword is not supported")));
  }
}

}  // namespace
}  // namespace tandem::guided
