// What the CPU and the operating system offer, asked at run time.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tamis {

// Name → usable, in a fixed order. "Usable" means that the CPU has the instructions and that the operating system
// saves the registers they need. On other architectures than x86-64 every entry is false.
// AMX also needs a permission per process (Linux: arch_prctl) before its first instruction; that is not asked here.
std::vector<std::pair<std::string, bool>> cpu_features();

// AVX2 with FMA and F16C: what the files named after it are compiled for. A CPU with the first alone takes the scalar paths.
bool has_avx2();

}  // namespace tamis
