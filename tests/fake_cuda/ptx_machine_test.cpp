#include "ptx_machine.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <doctest/doctest.h>
#include <limits>

using namespace fake_cuda;

namespace {

/// A kernel with one parameter, an address, and the given body. %rd1 contains the address, %r1 the thread's index in
/// its block, %rd2 the address of the thread's 8 bytes.
std::string kernel_text(const std::string& body) {
  return R"(
.version 9.0
.target sm_90
.address_size 64
.visible .entry tried(
	.param .u64 tried_param_0
)
.maxntid 64, 1, 1
{
	.reg .pred %p<8>;
	.reg .b16 %rs<8>;
	.reg .f32 %f<8>;
	.reg .b32 %r<8>;
	.reg .f64 %fd<8>;
	.reg .b64 %rd<8>;
	.shared .align 4 .b8 room[16];

	ld.param.u64 %rd1, [tried_param_0];
	mov.u32 %r1, %tid.x;
	mul.wide.u32 %rd2, %r1, 8;
	add.s64 %rd2, %rd1, %rd2;
)" + body +
         "\n\tret;\n}\n";
}

/// Runs the kernel on `words`, the only accessible memory.
void run(const std::string& body, std::vector<std::uint64_t>& words, unsigned threads = 1, unsigned blocks = 1) {
  const auto kernels = ptx::parse(kernel_text(body));
  const auto first = reinterpret_cast<std::uintptr_t>(words.data());
  const auto end = first + words.size() * sizeof(words[0]);
  std::array<std::byte, 8> arguments;
  std::memcpy(arguments.data(), &first, sizeof(first));
  ptx::run(kernels.at("tried"), blocks, threads, arguments, [&](std::uintptr_t at) {
    return at >= first && at < end ? std::optional{address_range{first, end}} : std::nullopt;
  });
}

/// The violation reported for the kernel.
std::string refusal(const std::string& body, unsigned threads = 1, unsigned blocks = 1) {
  std::vector<std::uint64_t> words(8);
  try {
    run(body, words, threads, blocks);
  } catch (const ptx::violation& x) {
    return x.what();
  }
  return {};
}

std::uint64_t bits(float x) {
  return std::bit_cast<std::uint32_t>(x);
}
std::uint64_t bits(double x) {
  return std::bit_cast<std::uint64_t>(x);
}

/// An instruction for 32 or 64 bits and its result for two words.
struct example {
  const char* instruction;
  std::uint64_t x;
  std::uint64_t y;
  std::uint64_t result;
};

constexpr std::uint64_t canonical = 0x7fffffff;
constexpr auto infinity = std::numeric_limits<float>::infinity();

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("instructions for 32 bits follow the PTX ISA") {
  for (const auto& each : std::initializer_list<example>{
           {"add.s32 %r4, %r2, %r3", 0xffffffff, 2, 1},
           {"sub.s32 %r4, %r2, %r3", 1, 2, 0xffffffff},
           {"mul.lo.s32 %r4, %r2, %r3", 0x10001, 0x10001, 0x20001},
           {"min.s32 %r4, %r2, %r3", 0xffffffff, 2, 0xffffffff},
           {"min.u32 %r4, %r2, %r3", 0xffffffff, 2, 2},
           {"div.u32 %r4, %r2, %r3", 0xffffffff, 16, 0x0fffffff},
           {"rem.u32 %r4, %r2, %r3", 17, 5, 2},
           {"shl.b32 %r4, %r2, %r3", 3, 31, 0x80000000},
           {"shl.b32 %r4, %r2, %r3", 3, 32, 0},
           {"shr.u32 %r4, %r2, %r3", 0x80000000, 40, 0},
           {"shr.s32 %r4, %r2, %r3", 0x80000000, 40, 0xffffffff},
           {"shr.s32 %r4, %r2, %r3", 0x80000000, 4, 0xf8000000},
           {"xor.b32 %r4, %r2, %r3", 0xff00ff00, 0x0ff00ff0, 0xf0f0f0f0},
           {"not.b32 %r4, %r2", 0x0000ffff, 0, 0xffff0000},
           {"neg.s32 %r4, %r2", 1, 0, 0xffffffff},
           {"prmt.b32 %r4, %r2, %r3, 0x5410", 0x33221100, 0x77665544, 0x55441100},
           {"prmt.b32 %r4, %r2, %r3, 0xf654", 0x33221100, 0xf7665544, 0xff665544},
           {"add.rn.f32 %f4, %f2, %f3", bits(1.0F), bits(0x1p-24F), bits(1.0F)},
           {"add.rn.f32 %f4, %f2, %f3", bits(0x1p-149F), bits(0x1p-149F), bits(0x1p-148F)},
           {"add.rn.f32 %f4, %f2, %f3", bits(infinity), bits(-infinity), canonical},
           {"add.rn.f32 %f4, %f2, %f3", 0x7fc12345, bits(1.0F), canonical},
           {"mul.rn.f32 %f4, %f2, %f3", bits(0x1p-140F), bits(0.5F), bits(0x1p-141F)},
           {"div.rn.f32 %f4, %f2, %f3", bits(1.0F), bits(3.0F), bits(1.0F / 3.0F)},
           {"rcp.rn.f32 %f4, %f2", bits(3.0F), 0, bits(1.0F / 3.0F)},
           {"sqrt.rn.f32 %f4, %f2", bits(2.0F), 0, bits(std::sqrt(2.0F))},
           {"abs.f32 %f4, %f2", 0xffc12345, 0, 0x7fc12345},
           {"copysign.f32 %f4, %f2, %f3", bits(-1.0F), bits(2.0F), bits(-2.0F)},
           {"mov.b32 %f4, %r2", 0xffc12345, 0, 0xffc12345},
           {"cvt.u32.u16 %r4, %rs2", 0x12345678, 0, 0x5678},
           {"cvt.rn.f32.u16 %f4, %rs2", 0x0001ffff, 0, bits(65535.0F)},
           {"mov.b32 %r4, {%rs2, %rs3}", 0x1111, 0x2222, 0x22221111},
           {"selp.b32 %r4, %r2, %r3, %p1", 1, 2, 1},
           {"selp.b32 %r4, %r2, %r3, %p2", 1, 2, 2},
       }) {
    CAPTURE(each.instruction);
    std::vector<std::uint64_t> words{each.x, each.y, 0};
    // A float and an integer register contain the same bits; one of them is the destination.
    run("\tld.global.u32 %r2, [%rd1];\n\tld.global.f32 %f2, [%rd1];\n\tld.global.u16 %rs2, [%rd1];\n"
        "\tld.global.u32 %r3, [%rd1+8];\n\tld.global.f32 %f3, [%rd1+8];\n\tld.global.u16 %rs3, [%rd1+8];\n"
        "\tsetp.eq.s32 %p1, 0, 0;\n\tsetp.eq.s32 %p2, 0, 1;\n\tmov.u32 %r4, 0;\n\tmov.b32 %f4, 0;\n\t" +
            std::string{each.instruction} +
            ";\n\tmov.b32 %r5, %f4;\n\tor.b32 %r4, %r4, %r5;\n\tst.global.u32 [%rd1+16], %r4;",
        words);
    CHECK(words[2] == each.result);
  }
}

TEST_CASE("instructions for 64 bits follow the PTX ISA") {
  for (const auto& each : std::initializer_list<example>{
           {"add.s64 %rd5, %rd3, %rd4", 0xffffffffffffffff, 2, 1},
           {"mul.lo.s64 %rd5, %rd3, %rd4", 0x100000001, 0x100000001, 0x200000001},
           {"mul.wide.u32 %rd5, %r2, %r3", 0xffffffff, 0xffffffff, 0xfffffffe00000001},
           {"max.s64 %rd5, %rd3, %rd4", 0xffffffffffffffff, 2, 2},
           {"max.u64 %rd5, %rd3, %rd4", 0xffffffffffffffff, 2, 0xffffffffffffffff},
           {"shr.s64 %rd5, %rd3, %r3", 0x8000000000000000, 63, 0xffffffffffffffff},
           {"cvt.u64.u32 %rd5, %r2", 0xffffffff, 0, 0xffffffff},
           {"cvt.s64.s32 %rd5, %r2", 0xffffffff, 0, 0xffffffffffffffff},
           {"add.rn.f64 %fd5, %fd3, %fd4", bits(1.0), bits(0x1p-53), bits(1.0)},
           {"mul.rn.f64 %fd5, %fd3, %fd4", bits(0.1), bits(10.0), bits(0.1 * 10.0)},
           {"div.rn.f64 %fd5, %fd3, %fd4", bits(1.0), bits(3.0), bits(1.0 / 3.0)},
           {"cvt.f64.f32 %fd5, %f2", bits(0.1F), 0, bits(static_cast<double>(0.1F))},
           {"cvt.rn.f64.s32 %fd5, %r2", 0xffffffff, 0, bits(-1.0)},
           {"mov.f64 %fd5, 0d3FE6A09E667F3BCD", 0, 0, 0x3FE6A09E667F3BCD},
           {"mov.b64 %rd5, {%r2, %r3}", 0x11111111, 0x22222222, 0x2222222211111111},
       }) {
    CAPTURE(each.instruction);
    std::vector<std::uint64_t> words{each.x, each.y, 0};
    run("\tld.global.u64 %rd3, [%rd1];\n\tld.global.f64 %fd3, [%rd1];\n\tld.global.u32 %r2, [%rd1];\n\tld.global.f32 "
        "%f2, [%rd1];\n"
        "\tld.global.u64 %rd4, [%rd1+8];\n\tld.global.f64 %fd4, [%rd1+8];\n\tld.global.u32 %r3, [%rd1+8];\n"
        "\tmov.u64 %rd5, 0;\n\tmov.f64 %fd5, 0d0000000000000000;\n\t" +
            std::string{each.instruction} +
            ";\n\tmov.b64 %rd6, %fd5;\n\tor.b64 %rd5, %rd5, %rd6;\n\tst.global.u64 [%rd1+16], %rd5;",
        words);
    CHECK(words[2] == each.result);
  }
}

TEST_CASE("comparisons distinguish numbers from NaNs") {
  const auto nan = bits(std::nanf(""));
  for (const auto& each : std::initializer_list<example>{
           {"setp.lt.f32", bits(1.0F), bits(2.0F), 1},
           {"setp.lt.f32", nan, bits(2.0F), 0},
           {"setp.gt.f32", bits(1.0F), nan, 0},
           {"setp.ne.f32", nan, nan, 0},
           {"setp.neu.f32", nan, nan, 1},
           {"setp.nan.f32", nan, bits(1.0F), 1},
           {"setp.nan.f32", bits(1.0F), bits(1.0F), 0},
           {"setp.num.f32", bits(1.0F), nan, 0},
           {"setp.num.f32", bits(1.0F), bits(1.0F), 1},
           {"setp.eq.f32", bits(-0.0F), bits(0.0F), 1},
       }) {
    CAPTURE(each.instruction);
    std::vector<std::uint64_t> words{each.x, each.y, 7};
    run("\tld.global.f32 %f2, [%rd1];\n\tld.global.f32 %f3, [%rd1+8];\n\t" + std::string{each.instruction} +
            " %p1, %f2, %f3;\n\tselp.b32 %r2, 1, 0, %p1;\n\tst.global.u32 [%rd1+16], %r2;",
        words);
    CHECK(words[2] == each.result);
  }
}

TEST_CASE("threads know their position, branch, and wait for each other") {
  std::vector<std::uint64_t> words(8);
  // The second thread of each block stores, after a barrier, what the first has written.
  run(R"(
	mov.u32 %r2, %ctaid.x;
	mov.u32 %r3, %ntid.x;
	setp.ne.s32 %p1, %r1, 0;
	@%p1 bra $L__end_of_first;
	add.s32 %r4, %r2, 40;
	st.shared.u32 [room+4], %r4;
$L__end_of_first:
	bar.sync 0;
	@!%p1 bra $L__end;
	ld.shared.u32 %r5, [room+4];
	mul.lo.s32 %r6, %r2, %r3;
	mul.wide.u32 %rd3, %r6, 8;
	add.s64 %rd3, %rd2, %rd3;
	st.global.u32 [%rd3], %r5;
$L__end:)",
      words, 2, 4);
  CHECK(words == std::vector<std::uint64_t>{0, 40, 0, 41, 0, 42, 0, 43});
}

TEST_CASE("vectors are loaded and stored as a whole") {
  std::vector<std::uint64_t> words{1, 2, 0, 0};
  run("\tld.global.v2.u64 {%rd3, %rd4}, [%rd1];\n\tst.global.v2.u64 [%rd1+16], {%rd4, %rd3};", words);
  CHECK(words == std::vector<std::uint64_t>{1, 2, 2, 1});
}

TEST_CASE("violations are reported with line and thread") {
  const auto beyond = refusal("\tst.global.u64 [%rd2], %rd1;", 9);
  CHECK(contains(beyond, "tried, line 22, thread 8: writes 8 bytes outside of all allocations"));
  CHECK(contains(refusal("\tld.global.u32 %r2, [%rd1+62];"), "not aligned"));
  CHECK(contains(refusal("\tld.global.v2.u64 {%rd3, %rd4}, [%rd1+8];"), "not aligned"));
  CHECK(contains(refusal("\tld.global.u32 %r2, [%rd1+-4];"), "reads 4 bytes outside"));
  CHECK(contains(refusal("\tld.shared.u32 %r2, [room+16];"), "beyond its end"));
  CHECK(contains(refusal("\tld.shared.u32 %r2, [room];"), "uninitialised shared memory"));
  CHECK(contains(refusal("\tst.global.u32 [%rd2], %r1;", 65), "65 threads in a block"));
  CHECK(contains(refusal("\tdiv.u32 %r2, %r1, 0;"), "divides by zero"));
  CHECK(refusal("\tst.global.u64 [%rd2], %rd1;", 8).empty());
}

TEST_CASE("races are found") {
  // Without a barrier and with one.
  const std::string store_all = "\tmul.lo.s32 %r2, %r1, 4;\n\tmov.u32 %r3, room;\n\tadd.s32 %r3, %r3, %r2;\n"
                                "\tst.shared.u32 [%r3], %r1;\n";
  const std::string load_first = "\tld.shared.u32 %r4, [room];\n";
  CHECK(contains(refusal(store_all + load_first, 4), "shared memory between two barriers"));
  CHECK(refusal(store_all + "\tbar.sync 0;\n" + load_first, 4).empty());
  CHECK(contains(refusal(store_all + "\tbar.sync 0;\n" + load_first + store_all, 4), "shared memory between"));
  // Shared memory does not survive from one block to the next.
  CHECK(contains(refusal("\tmov.u32 %r2, %ctaid.x;\n\tsetp.ne.s32 %p1, %r2, 0;\n\t@%p1 bra $L__1;\n"
                         "\tst.shared.u32 [room], %r1;\n$L__1:\n\tld.shared.u32 %r3, [room];",
                         1, 2),
                 "uninitialised shared memory"));
  CHECK(contains(refusal("\tst.global.u32 [%rd1], %r1;", 2), "one of them writes: global memory"));
  CHECK(contains(refusal("\tst.global.u32 [%rd2], %r1;\n\tld.global.u8 %r2, [%rd1+3];", 3), "global memory"));
  CHECK(refusal("\tld.global.u64 %rd3, [%rd1+56];\n\tst.global.u32 [%rd2], %r1;", 7).empty());
}

TEST_CASE("all threads of a block must reach the same barrier") {
  CHECK(contains(refusal("\tsetp.ne.s32 %p1, %r1, 0;\n\t@%p1 bra $L__1;\n\tbar.sync 0;\n$L__1:", 2),
                 "not all threads of a block reach the same barrier"));
}

TEST_CASE("unsupported PTX is rejected with its line") {
  const auto why = [](const std::string& body) {
    try {
      ptx::parse(kernel_text(body));
    } catch (const ptx::violation& x) {
      return std::string{x.what()};
    }
    return std::string{};
  };
  // Fused, flushed or approximate arithmetic would change bits.
  for (const auto* each :
       {"fma.rn.f32 %f1, %f2, %f3, %f4", "add.ftz.f32 %f1, %f2, %f3", "add.f32 %f1, %f2, %f3",
        "div.approx.f32 %f1, %f2, %f3", "ex2.approx.f32 %f1, %f2", "atom.global.add.f32 %f1, [%rd1], %f2"})
    CHECK(contains(why(std::string{each} + ";"), "PTX, line 22: the instruction is not supported"));
  CHECK(contains(why("\tadd.s32 %r1, %r2, %q3;"), "not a number: %q3"));
  CHECK(contains(why("\tbra $L__nowhere;"), "there is no label $L__nowhere"));
  CHECK(contains(why("\tadd.s32 %r1, %r2, %r3"), "not a statement on one line"));
  CHECK(contains(why("\t.local .align 4 .b8 depot[16];"), "not supported: .local"));
}
