//! From a template's text to instructions, with every operator that costs more than a step made a call that is paid for.
//!
//! The parser has no bound on chains (`----1`, `elif`, `a + b + …`), each of which takes a stack frame per link: a
//! template is read on a thread whose stack has room for the longest chain that a text of [`MAX_SOURCE_BYTES`] can hold,
//! and refused if an expression or a chain of branches is longer than [`MAX_NESTING`], before anything else walks it.

use super::builtins as names;
use super::{Error, Result, reason, source};
use minijinja::Value;
use minijinja::machinery::ast::{self, Expr, Spanned, Stmt};
use minijinja::machinery::{CodeGenerator, Instructions, Span, parse};
use minijinja::syntax::SyntaxConfig;
use std::thread;

/// Bytes of a template. The longest of real models have 20 KB.
pub(super) const MAX_SOURCE_BYTES: usize = 256 << 10;
/// Operators, calls, filters and branches inside each other. Chains count: `a + b + c` is two levels.
pub(super) const MAX_NESTING: usize = 500;
/// Stack for a template of no length, and for each byte of it: the parser's frames for one `-` or `not`.
const STACK_BYTES: usize = 16 << 20;
const STACK_BYTES_PER_BYTE: usize = 2 << 10;
/// The template's name in the engine's errors.
const NAME: &str = "chat template";
/// Bytes that the values enclosed by a macro count for.
const MACRO_BYTES: usize = 1 << 10;

type Parsed<T> = std::result::Result<T, minijinja::Error>;

self_cell::self_cell!(
    /// Instructions with the text that they refer to.
    pub(super) struct Program {
        owner: String,
        #[covariant]
        dependent: Instructions,
    }
);

/// Compiles a template.
///
/// Errors: `Syntax` with the line, for a template beyond the bounds too.
pub(super) fn compile(source: &str) -> Result<Program> {
    let syntax_error = |reason: String| Error::Syntax { line: None, reason };
    if source.len() > MAX_SOURCE_BYTES {
        let n = source.len();
        return Err(syntax_error(format!("it has {n} bytes; at most {MAX_SOURCE_BYTES} are allowed")));
    }
    let source = source::rewrite(source);
    let stack = STACK_BYTES + source.len() * STACK_BYTES_PER_BYTE;
    thread::scope(|scope| {
        let compiler = thread::Builder::new().name("template".into()).stack_size(stack);
        let compiler = compiler.spawn_scoped(scope, || Program::try_new(source, |source| generate(source)));
        let compiled =
            compiler.map_err(|error| syntax_error(format!("no thread to compile it: {error}")))?.join();
        compiled.unwrap_or_else(|_| Err(syntax_error("the template engine failed at it".to_owned())))
    })
}

fn generate(source: &str) -> Result<Instructions<'_>> {
    let failed = |error: minijinja::Error| Error::Syntax { line: error.line(), reason: reason(&error) };
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(failed)?;
    let parsed = parse(source, NAME, syntax).map_err(failed)?;
    let bounded = body(std::slice::from_ref(&parsed), 0).map_err(failed)?;
    let mut code = CodeGenerator::new(NAME, source);
    for statement in &bounded {
        code.compile_stmt(statement);
    }
    Ok(code.finish().0)
}

fn body<'a>(statements: &[Stmt<'a>], depth: usize) -> Parsed<Vec<Stmt<'a>>> {
    let mut out = Vec::with_capacity(statements.len());
    for s in statements {
        statement(s, depth, &mut out)?;
    }
    Ok(out)
}

/// Appends the bounded form of a statement.
fn statement<'a>(stmt: &Stmt<'a>, depth: usize, out: &mut Vec<Stmt<'a>>) -> Parsed<()> {
    let depth = deeper(depth, || span_of(stmt))?;
    if matches!(stmt, Stmt::Macro(_) | Stmt::CallBlock(_)) {
        out.push(payment(span_of(stmt)));
    }
    out.push(match stmt {
        Stmt::Template(t) => {
            let children = body(&t.children, depth - 1)?;
            Stmt::Template(Spanned::new(ast::Template { children }, t.span()))
        }
        Stmt::EmitExpr(e) => {
            Stmt::EmitExpr(Spanned::new(ast::EmitExpr { expr: expr(&e.expr, depth)? }, e.span()))
        }
        // The formatter pays for what is written, in captured blocks too.
        Stmt::EmitRaw(raw) => {
            let expr = constant(Value::from(raw.raw), raw.span());
            Stmt::EmitExpr(Spanned::new(ast::EmitExpr { expr }, raw.span()))
        }
        Stmt::ForLoop(f) => Stmt::ForLoop(Spanned::new(for_loop(f, depth)?, f.span())),
        Stmt::IfCond(i) => Stmt::IfCond(Spanned::new(
            ast::IfCond {
                expr: expr(&i.expr, depth)?,
                true_body: body(&i.true_body, depth)?,
                false_body: body(&i.false_body, depth)?,
            },
            i.span(),
        )),
        Stmt::Macro(m) => Stmt::Macro(Spanned::new(macro_decl(m, depth)?, m.span())),
        Stmt::CallBlock(c) => {
            let call = Spanned::new(call_of(&c.call, depth)?, c.call.span());
            let macro_decl = Spanned::new(macro_decl(&c.macro_decl, depth)?, c.macro_decl.span());
            Stmt::CallBlock(Spanned::new(ast::CallBlock { call, macro_decl }, c.span()))
        }
        Stmt::Continue(c) => Stmt::Continue(Spanned::new(ast::Continue, c.span())),
        Stmt::Break(b) => Stmt::Break(Spanned::new(ast::Break, b.span())),
        // The engine leaves the value of a `do` on its stack for ever; an assignment drops it.
        Stmt::Do(d) => {
            let value = Expr::Call(Spanned::new(call_of(&d.call, depth)?, d.call.span()));
            discard(value, d.span())
        }
        Stmt::WithBlock(_)
        | Stmt::Set(_)
        | Stmt::SetBlock(_)
        | Stmt::AutoEscape(_)
        | Stmt::FilterBlock(_) => assigning(stmt, depth)?,
        Stmt::Block(_) | Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Extends(_) | Stmt::Include(_) => {
            return Err(refused(
                "a chat template has no blocks and no other templates to include",
                span_of(stmt),
            ));
        }
    });
    Ok(())
}

/// The bounded form of a statement that sets something, or filters what is in it.
fn assigning<'a>(stmt: &Stmt<'a>, depth: usize) -> Parsed<Stmt<'a>> {
    Ok(match stmt {
        Stmt::WithBlock(w) => {
            let pair = |(to, from): &(Expr<'a>, Expr<'a>)| Ok((target(to, depth)?, expr(from, depth)?));
            let assignments = w.assignments.iter().map(pair).collect::<Parsed<_>>()?;
            Stmt::WithBlock(Spanned::new(
                ast::WithBlock { assignments, body: body(&w.body, depth)? },
                w.span(),
            ))
        }
        Stmt::Set(s) => {
            let to = target(&s.target, depth)?;
            let value = expr(&s.expr, depth)?;
            let to_namespace = matches!(to, Expr::GetAttr(_));
            let value = if to_namespace { call(names::STORE, value, vec![]) } else { value };
            Stmt::Set(Spanned::new(ast::Set { target: to, expr: value }, s.span()))
        }
        Stmt::SetBlock(s) => {
            let filter = s.filter.as_ref().map(|f| expr(f, depth)).transpose()?;
            let set =
                ast::SetBlock { target: target(&s.target, depth)?, filter, body: body(&s.body, depth)? };
            Stmt::SetBlock(Spanned::new(set, s.span()))
        }
        Stmt::AutoEscape(a) => {
            let enabled = expr(&a.enabled, depth)?;
            Stmt::AutoEscape(Spanned::new(ast::AutoEscape { enabled, body: body(&a.body, depth)? }, a.span()))
        }
        Stmt::FilterBlock(f) => {
            let filter = expr(&f.filter, depth)?;
            Stmt::FilterBlock(Spanned::new(
                ast::FilterBlock { filter, body: body(&f.body, depth)? },
                f.span(),
            ))
        }
        _ => unreachable!("other statements have no assignment"),
    })
}

fn for_loop<'a>(f: &ast::ForLoop<'a>, depth: usize) -> Parsed<ast::ForLoop<'a>> {
    Ok(ast::ForLoop {
        target: target(&f.target, depth)?,
        // The engine iterates over None as over an empty list, Python does not.
        iter: call(names::ITERABLE, unchanging(&f.iter, depth)?, vec![]),
        filter_expr: f.filter_expr.as_ref().map(|e| expr(e, depth)).transpose()?,
        recursive: f.recursive,
        body: body(&f.body, depth)?,
        else_body: body(&f.else_body, depth)?,
    })
}

fn macro_decl<'a>(m: &ast::Macro<'a>, depth: usize) -> Parsed<ast::Macro<'a>> {
    Ok(ast::Macro {
        name: m.name,
        args: exprs(&m.args, depth)?,
        defaults: exprs(&m.defaults, depth)?,
        body: body(&m.body, depth)?,
    })
}

/// Statement that pays for what a macro encloses.
fn payment<'a>(span: Span) -> Stmt<'a> {
    discard(call(names::PAY, constant(Value::from(MACRO_BYTES), span), vec![]), span)
}

/// Statement that evaluates an expression and drops its value.
fn discard<'a>(expr: Expr<'a>, span: Span) -> Stmt<'a> {
    let target = Expr::Var(Spanned::new(ast::Var { id: names::DISCARDED }, span));
    Stmt::Set(Spanned::new(ast::Set { target, expr }, span))
}

fn exprs<'a>(list: &[Expr<'a>], depth: usize) -> Parsed<Vec<Expr<'a>>> {
    list.iter().map(|e| expr(e, depth)).collect()
}

/// What is part of a list, tuple or dict.
fn elements<'a>(list: &[Expr<'a>], depth: usize) -> Parsed<Vec<Expr<'a>>> {
    list.iter()
        .map(|e| match e {
            Expr::List(_) => unchanging(e, depth),
            _ => Ok(paid(names::FROZEN, expr(e, depth)?)),
        })
        .collect()
}

/// The bounded form of an expression whose value nobody can change: lists need no copy of their own.
fn unchanging<'a>(e: &Expr<'a>, depth: usize) -> Parsed<Expr<'a>> {
    let Expr::List(l) = e else { return expr(e, depth) };
    let depth = deeper(depth, || e.span())?;
    let list = Expr::List(Spanned::new(ast::List { items: elements(&l.items, depth)? }, l.span()));
    Ok(paid(names::STORE, list))
}

/// What an assignment assigns to: names, fields of namespaces, and lists of them.
fn target<'a>(e: &Expr<'a>, depth: usize) -> Parsed<Expr<'a>> {
    let Expr::List(list) = e else { return expr(e, depth) };
    let depth = deeper(depth, || e.span())?;
    let items = list.items.iter().map(|item| target(item, depth)).collect::<Parsed<_>>()?;
    Ok(Expr::List(Spanned::new(ast::List { items }, list.span())))
}

/// The bounded form of an expression.
fn expr<'a>(e: &Expr<'a>, depth: usize) -> Parsed<Expr<'a>> {
    let depth = deeper(depth, || e.span())?;
    Ok(match e {
        Expr::Var(v) => Expr::Var(Spanned::new(ast::Var { id: v.id }, v.span())),
        Expr::Const(c) => constant(c.value.clone(), c.span()),
        Expr::Slice(s) => {
            let bound = |e: &Option<Expr<'a>>| match e {
                Some(e) => expr(e, depth),
                None => Ok(constant(Value::from(()), s.span())),
            };
            let bounds = vec![bound(&s.start)?, bound(&s.stop)?, bound(&s.step)?];
            call(names::SLICE, expr(&s.expr, depth)?, bounds)
        }
        Expr::UnaryOp(u) => {
            let not = matches!(u.op, ast::UnaryOpKind::Not);
            let op = if not { ast::UnaryOpKind::Not } else { ast::UnaryOpKind::Neg };
            Expr::UnaryOp(Spanned::new(ast::UnaryOp { op, expr: expr(&u.expr, depth)? }, u.span()))
        }
        Expr::BinOp(b) => binary(b, depth)?,
        Expr::Compare(c) => {
            let op = |o: &ast::CompareOp<'a>| {
                Ok(ast::CompareOp { op: o.op, expr: paid(names::READ, unchanging(&o.expr, depth)?) })
            };
            let ops = c.ops.iter().map(op).collect::<Parsed<_>>()?;
            let first = paid(names::READ, expr(&c.expr, depth)?);
            Expr::Compare(Spanned::new(ast::Compare { expr: first, ops }, c.span()))
        }
        Expr::IfExpr(i) => Expr::IfExpr(Spanned::new(
            ast::IfExpr {
                test_expr: expr(&i.test_expr, depth)?,
                true_expr: expr(&i.true_expr, depth)?,
                false_expr: i.false_expr.as_ref().map(|e| expr(e, depth)).transpose()?,
            },
            i.span(),
        )),
        Expr::Filter(f) => {
            let input = f.expr.as_ref().map(|e| expr(e, depth)).transpose()?;
            let filter = ast::Filter { name: f.name, expr: input, args: args(&f.args, depth)? };
            Expr::Filter(Spanned::new(filter, f.span()))
        }
        Expr::Test(t) => {
            let test = ast::Test { name: t.name, expr: expr(&t.expr, depth)?, args: args(&t.args, depth)? };
            Expr::Test(Spanned::new(test, t.span()))
        }
        Expr::GetAttr(g) => {
            Expr::GetAttr(Spanned::new(ast::GetAttr { expr: expr(&g.expr, depth)?, name: g.name }, g.span()))
        }
        Expr::GetItem(g) => item(g, depth)?,
        Expr::Call(c) => Expr::Call(Spanned::new(call_of(c, depth)?, c.span())),
        Expr::List(l) => {
            let list = Expr::List(Spanned::new(ast::List { items: elements(&l.items, depth)? }, l.span()));
            call(names::LIST, list, vec![])
        }
        Expr::Tuple(t) => {
            let tuple = Expr::Tuple(Spanned::new(ast::Tuple { items: elements(&t.items, depth)? }, t.span()));
            paid(names::STORE, tuple)
        }
        Expr::Map(m) => {
            let map = ast::Map { keys: elements(&m.keys, depth)?, values: elements(&m.values, depth)? };
            paid(names::STORE, Expr::Map(Spanned::new(map, m.span())))
        }
    })
}

fn binary<'a>(b: &Spanned<ast::BinOp<'a>>, depth: usize) -> Parsed<Expr<'a>> {
    use ast::BinOpKind as Op;
    let is_choice = matches!(b.op, Op::ScAnd | Op::ScOr);
    let operand = |e| if is_choice { expr(e, depth) } else { unchanging(e, depth) };
    let (left, right) = (operand(&b.left)?, operand(&b.right)?);
    let native = |left, right| Expr::BinOp(Spanned::new(ast::BinOp { op: b.op, left, right }, b.span()));
    Ok(match b.op {
        Op::Add => call(names::MADE, native(paid(names::SKIM, left), paid(names::SKIM, right)), vec![]),
        Op::Concat => {
            // The engine prints numbers and lists in its own way.
            let text = |operand| call(names::STRING, operand, vec![]);
            call(names::MADE, native(text(left), text(right)), vec![])
        }
        Op::Mul => call(names::MULTIPLY, left, vec![right]),
        Op::Eq | Op::Ne | Op::Lt | Op::Lte | Op::Gt | Op::Gte | Op::In => {
            native(paid(names::READ, left), paid(names::READ, right))
        }
        // Numbers only, and the choice between two values.
        Op::Sub | Op::Div | Op::FloorDiv | Op::Rem | Op::Pow | Op::ScAnd | Op::ScOr => native(left, right),
    })
}

fn item<'a>(g: &Spanned<ast::GetItem<'a>>, depth: usize) -> Parsed<Expr<'a>> {
    let (of, key) = (expr(&g.expr, depth)?, expr(&g.subscript_expr, depth)?);
    // By a key that is text nothing but a map is searched; by a number, a text from its beginning.
    let by_name = matches!(&key, Expr::Const(c) if c.value.as_str().is_some());
    let of = if by_name { of } else { paid(names::SKIM, of) };
    let get = ast::GetItem { expr: of, subscript_expr: paid(names::READ, key) };
    Ok(Expr::GetItem(Spanned::new(get, g.span())))
}

fn call_of<'a>(c: &Spanned<ast::Call<'a>>, depth: usize) -> Parsed<ast::Call<'a>> {
    let mut args = args(&c.args, depth)?;
    if matches!(&c.expr, Expr::Var(function) if function.id == "dict") {
        for arg in &mut args {
            let (ast::CallArg::Pos(value) | ast::CallArg::Kwarg(_, value)) = arg else { continue };
            let given = std::mem::replace(value, constant(Value::UNDEFINED, c.span()));
            *value = paid(names::FROZEN, given);
        }
    }
    if let Expr::GetAttr(method) = &c.expr {
        match method.name {
            // A loop keeps what `changed` was asked for.
            "changed" => {
                for arg in &mut args {
                    let old = std::mem::replace(arg, ast::CallArg::Pos(constant(Value::UNDEFINED, c.span())));
                    *arg = match old {
                        ast::CallArg::Pos(value) => ast::CallArg::Pos(call(names::STORE, value, vec![])),
                        other => other,
                    };
                }
            }
            "cycle" if args.is_empty() => return Err(refused("cycle() needs values", c.span())),
            _ => {}
        }
    }
    Ok(ast::Call { expr: expr(&c.expr, depth)?, args })
}

fn args<'a>(list: &[ast::CallArg<'a>], depth: usize) -> Parsed<Vec<ast::CallArg<'a>>> {
    list.iter()
        .map(|arg| {
            Ok(match arg {
                ast::CallArg::Pos(e) => ast::CallArg::Pos(expr(e, depth)?),
                ast::CallArg::Kwarg(name, e) => ast::CallArg::Kwarg(name, expr(e, depth)?),
                ast::CallArg::PosSplat(e) | ast::CallArg::KwargSplat(e) => {
                    return Err(refused("arguments cannot be spread with * or **", e.span()));
                }
            })
        })
        .collect()
}

/// `value|name`, unless the value is a constant, which costs nothing.
fn paid<'a>(name: &'static str, value: Expr<'a>) -> Expr<'a> {
    let constant = match &value {
        Expr::Const(_) => true,
        Expr::List(_) | Expr::Tuple(_) | Expr::Map(_) => value.as_const().is_some(),
        _ => false,
    };
    if constant { value } else { call(name, value, vec![]) }
}

/// `value|name(args)`.
fn call<'a>(name: &'static str, value: Expr<'a>, args: Vec<Expr<'a>>) -> Expr<'a> {
    let span = value.span();
    let args = args.into_iter().map(ast::CallArg::Pos).collect();
    Expr::Filter(Spanned::new(ast::Filter { name, expr: Some(value), args }, span))
}

fn constant<'a>(value: Value, span: Span) -> Expr<'a> {
    Expr::Const(Spanned::new(ast::Const { value }, span))
}

fn deeper(depth: usize, span: impl Fn() -> Span) -> Parsed<usize> {
    if depth >= MAX_NESTING {
        let message = format!("operators, calls or branches nest deeper than {MAX_NESTING} levels");
        return Err(refused(&message, span()));
    }
    Ok(depth + 1)
}

fn refused(message: &str, span: Span) -> minijinja::Error {
    let message = format!("{message} (line {})", span.start_line);
    minijinja::Error::new(minijinja::ErrorKind::SyntaxError, message)
}

fn span_of(stmt: &Stmt<'_>) -> Span {
    match stmt {
        Stmt::Template(s) => s.span(),
        Stmt::EmitExpr(s) => s.span(),
        Stmt::EmitRaw(s) => s.span(),
        Stmt::ForLoop(s) => s.span(),
        Stmt::IfCond(s) => s.span(),
        Stmt::WithBlock(s) => s.span(),
        Stmt::Set(s) => s.span(),
        Stmt::SetBlock(s) => s.span(),
        Stmt::AutoEscape(s) => s.span(),
        Stmt::FilterBlock(s) => s.span(),
        Stmt::Macro(s) => s.span(),
        Stmt::CallBlock(s) => s.span(),
        Stmt::Continue(s) => s.span(),
        Stmt::Break(s) => s.span(),
        Stmt::Do(s) => s.span(),
        Stmt::Block(s) => s.span(),
        Stmt::Import(s) => s.span(),
        Stmt::FromImport(s) => s.span(),
        Stmt::Extends(s) => s.span(),
        Stmt::Include(s) => s.span(),
    }
}
