//! Compiled kernels and their arguments.
//!
//! [`kernel_args!`] describes the arguments of a source file's kernels once: it makes the Rust structs, and `tools/kernels` writes the
//! header that the kernels include from the same text. [`kernels!`] lists the kernels of a source file, each with its arguments' type, so
//! that a launch with another kernel's arguments does not compile.

use super::api::{Driver, Function, Image};
use crate::Result;
use std::fmt;
use std::marker::PhantomData;

/// A kernel that takes one struct of type `A`.
pub(in crate::cuda) struct Kernel<A> {
    pub(super) function: Function,
    args: PhantomData<fn(&A)>,
}

impl<A> Clone for Kernel<A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Kernel<A> {}

impl<A> fmt::Debug for Kernel<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.function.fmt(f)
    }
}

/// The compiled form of one source file.
#[derive(Clone, Copy)]
pub(in crate::cuda) struct KernelImage(pub(in crate::cuda) &'static Image);

impl KernelImage {
    /// The kernel `name`, which may be launched with up to `shared_bytes` of dynamic shared memory.
    ///
    /// The caller states the type of its arguments: `A` is the struct that the kernel is declared with in the source file.
    pub(in crate::cuda) fn kernel<A>(
        self,
        driver: &dyn Driver,
        name: &str,
        shared_bytes: usize,
    ) -> Result<Kernel<A>> {
        let function = driver.function(self.0, name, shared_bytes as u32)?;
        Ok(Kernel { function, args: PhantomData })
    }
}

/// The image of `cuda/<room>/<name>.cu`, embedded from `prebuilt/<name>.fatbin`.
macro_rules! kernel_image {
    ($name:ident) => {{
        static IMAGE: $crate::cuda::driver::Image = $crate::cuda::driver::Image {
            name: stringify!($name),
            bytes: include_bytes!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/prebuilt/",
                stringify!($name),
                ".fatbin"
            )),
        };
        $crate::cuda::driver::KernelImage(&IMAGE)
    }};
}

/// Lists the kernels of a source file: `kernels! { pub(super) struct Kernels in norm { norm_rows: NormArgs } }` makes the struct, with a
/// [`Kernel`] for each name, and its `load`.
macro_rules! kernels {
    ($(#[$meta:meta])* $vis:vis struct $Kernels:ident in $image:ident {
        $($(#[$doc:meta])* $kvis:vis $name:ident: $Args:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        $vis struct $Kernels {
            $($(#[$doc])* $kvis $name: $crate::cuda::driver::Kernel<$Args>,)*
        }

        impl $Kernels {
            $vis fn load(driver: &dyn $crate::cuda::driver::Driver) -> $crate::Result<Self> {
                let image = $crate::cuda::driver::kernel_image!($image);
                Ok(Self { $($name: image.kernel(driver, stringify!($name), 0)?,)* })
            }
        }
    };
}

/// Describes arguments of kernels, and sizes that they share with the launcher.
///
/// The first line names the header, beside the Rust file, that `tools/kernels` writes from this text; `include` lines follow that it needs.
/// A field's type on the device is that
/// after `as`; numbers and structs described before need none. Doc comments are copied to the header.
macro_rules! kernel_args {
    (in $header:literal; $($item:tt)*) => {
        $crate::cuda::driver::kernel_args!(@items $($item)*);
    };
    (@items) => {};
    (@items include $header:literal; $($rest:tt)*) => {
        $crate::cuda::driver::kernel_args!(@items $($rest)*);
    };
    (@items $(#[$meta:meta])* const $NAME:ident: usize = $value:expr; $($rest:tt)*) => {
        $(#[$meta])*
        pub(in crate::cuda) const $NAME: usize = $value;
        $crate::cuda::driver::kernel_args!(@items $($rest)*);
    };
    (@items $(#[$meta:meta])* pub const $NAME:ident: usize = $value:expr; $($rest:tt)*) => {
        $(#[$meta])*
        pub const $NAME: usize = $value;
        $crate::cuda::driver::kernel_args!(@items $($rest)*);
    };
    (@items $(#[$meta:meta])* struct $Name:ident {
        $($(#[$doc:meta])* $field:ident: $ty:ty $(as $c:literal)?,)*
    } $($rest:tt)*) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        #[repr(C)]
        pub(in crate::cuda) struct $Name {
            $($(#[$doc])* pub(in crate::cuda) $field: $ty,)*
        }
        $crate::cuda::driver::kernel_args!(@items $($rest)*);
    };
}

pub(in crate::cuda) use {kernel_args, kernel_image, kernels};
