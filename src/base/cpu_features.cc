#include "base/cpu_features.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace cutaway {
namespace {

std::string first_line(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return "";
  char line[256] = "";
  const bool got = std::fgets(line, sizeof line, file) != nullptr;
  std::fclose(file);
  if (!got) return "";
  line[std::strcspn(line, "\n")] = '\0';
  return line;
}

// "48K", "2048K", "32M" as the kernel writes cache sizes.
size_t parse_size(const std::string& text) {
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text.c_str(), &end, 10);
  const int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : 0;
  return static_cast<size_t>(value) << shift;
}

void read_caches(CpuFeatures& cpu) {
  for (int index = 0; index < 8; ++index) {
    const std::string dir =
        "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    const std::string level = first_line(dir + "level");
    if (level.empty()) break;
    const std::string type = first_line(dir + "type");
    if (type == "Instruction") continue;
    const size_t size = parse_size(first_line(dir + "size"));
    if (level == "1") cpu.l1d_bytes = size;
    if (level == "2") cpu.l2_bytes = size;
    if (level == "3") cpu.l3_bytes = size;
  }
#if defined(_SC_LEVEL1_DCACHE_SIZE)
  const auto fill = [](size_t& bytes, int name) {
    if (bytes != 0) return;
    const long size = ::sysconf(name);
    if (size > 0) bytes = static_cast<size_t>(size);
  };
  fill(cpu.l1d_bytes, _SC_LEVEL1_DCACHE_SIZE);
  fill(cpu.l2_bytes, _SC_LEVEL2_CACHE_SIZE);
  fill(cpu.l3_bytes, _SC_LEVEL3_CACHE_SIZE);
#endif
}

#if defined(__x86_64__)

struct Cpuid {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Cpuid cpuid(unsigned leaf, unsigned subleaf) {
  Cpuid r;
  // False (all zero) when the processor does not have the leaf.
  if (!__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx)) return {};
  return r;
}

bool bit(unsigned word, int index) { return (word >> index & 1) != 0; }

// XCR0: the register state that the operating system saves. Only valid where OSXSAVE is set.
uint64_t saved_state() {
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

std::string brand_text() {
  char text[49] = "";
  for (unsigned i = 0; i < 3; ++i) {
    const Cpuid r = cpuid(0x80000002U + i, 0);
    std::memcpy(text + 16 * i, &r, 16);
  }
  std::string brand = text;
  const size_t begin = brand.find_first_not_of(' ');
  const size_t end = brand.find_last_not_of(' ');
  return begin == std::string::npos ? "x86-64" : brand.substr(begin, end - begin + 1);
}

void detect_isa(CpuFeatures& cpu) {
  cpu.brand = brand_text();
  const Cpuid leaf1 = cpuid(1, 0);
  if (!bit(leaf1.ecx, 27)) return;  // no OSXSAVE: no AVX state at all
  const uint64_t state = saved_state();
  const bool saves_ymm = (state & 0x06) == 0x06;
  const bool saves_zmm = (state & 0xE6) == 0xE6;  // opmask and both halves of zmm too
  if (!saves_ymm) return;
  // Bits: Intel SDM volume 2A, CPUID; AMD APM volume 3, appendix E.
  const Cpuid leaf7 = cpuid(7, 0);
  const Cpuid leaf7_1 = leaf7.eax >= 1 ? cpuid(7, 1) : Cpuid{};
  cpu.fma = bit(leaf1.ecx, 12);
  cpu.f16c = bit(leaf1.ecx, 29);
  cpu.avx2 = bit(leaf7.ebx, 5);
  cpu.avx_vnni = bit(leaf7_1.eax, 4);
  if (!saves_zmm) return;
  cpu.avx512f = bit(leaf7.ebx, 16);
  cpu.avx512dq = bit(leaf7.ebx, 17);
  cpu.avx512bw = bit(leaf7.ebx, 30);
  cpu.avx512vl = bit(leaf7.ebx, 31);
  cpu.avx512_vnni = bit(leaf7.ecx, 11);
  cpu.avx512_bf16 = bit(leaf7_1.eax, 5);
}

#elif defined(__aarch64__)

void detect_isa(CpuFeatures& cpu) {
  // Bits: the kernel's arch/arm64/include/uapi/asm/hwcap.h, part of its stable interface.
  const unsigned long hwcap = ::getauxval(AT_HWCAP);
  const unsigned long hwcap2 = ::getauxval(AT_HWCAP2);
  cpu.neon = (hwcap >> 1 & 1) != 0;      // ASIMD
  cpu.dotprod = (hwcap >> 20 & 1) != 0;  // ASIMDDP
  cpu.i8mm = (hwcap2 >> 13 & 1) != 0;    // I8MM
  const std::string midr = first_line("/sys/devices/system/cpu/cpu0/regs/identification/midr_el1");
  cpu.brand = midr.empty() ? "AArch64" : "AArch64 (MIDR " + midr + ")";
}

#else

void detect_isa(CpuFeatures& cpu) { cpu.brand = "unknown"; }

#endif

CpuFeatures detect() {
  CpuFeatures cpu;
  detect_isa(cpu);
  read_caches(cpu);
  return cpu;
}

}  // namespace

std::vector<std::string> CpuFeatures::names() const {
  const std::pair<bool, const char*> flags[] = {{avx2, "avx2"},
                                                {fma, "fma"},
                                                {f16c, "f16c"},
                                                {avx512f, "avx512f"},
                                                {avx512bw, "avx512bw"},
                                                {avx512vl, "avx512vl"},
                                                {avx512dq, "avx512dq"},
                                                {avx512_vnni, "avx512_vnni"},
                                                {avx512_bf16, "avx512_bf16"},
                                                {avx_vnni, "avx_vnni"},
                                                {neon, "neon"},
                                                {dotprod, "dotprod"},
                                                {i8mm, "i8mm"}};
  std::vector<std::string> names;
  for (const auto& [set, name] : flags) {
    if (set) names.emplace_back(name);
  }
  return names;
}

const CpuFeatures& cpu_features() {
  static const CpuFeatures cpu = detect();
  return cpu;
}

}  // namespace cutaway
